"""Real faults of tokenizers and chat templates elsewhere, each kept out here."""

import pytest

from kvasir.text.tokenizer import Tokenizer
from tiny_tokenizers import BOS, EOS, byte_level

MESSAGES = [{"role": "user", "content": "a dog"}]
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
WITHOUT_BOS = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
TWICE_BOS = "{{ bos_token }}" + WITH_BOS
TEMPLATES = {"with BOS": WITH_BOS, "without BOS": WITHOUT_BOS, "BOS twice": TWICE_BOS}


def tokenizer_with(template: str, *, by_config: bool) -> Tokenizer:
    """BOS is added by the post-processor (Llama 3) or because tokenizer_config.json says so (Llama 2)."""
    config = {"bos_token": BOS, "eos_token": EOS} | ({"add_bos_token": True} if by_config else {})
    return Tokenizer(byte_level(adds_bos=not by_config), config=config, template_sources={"default": template})


def bos_of(tokenizer: Tokenizer) -> int:
    assert tokenizer.bos_id is not None
    return tokenizer.bos_id


@pytest.mark.parametrize("by_config", [False, True], ids=["post-processor", "add_bos_token"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_K1_exactly_one_bos_on_every_route(template: str, by_config: bool) -> None:
    tokenizer = tokenizer_with(TEMPLATES[template], by_config=by_config)
    bos = bos_of(tokenizer)
    chat_text = tokenizer.apply_chat_template(MESSAGES)
    routes = {
        "chat": tokenizer.encode_chat(MESSAGES),
        "rendered chat as a prompt": tokenizer.encode(chat_text),
        "raw completion": tokenizer.encode("a dog"),
        "text that starts with BOS": tokenizer.encode(f"{BOS}a dog"),
        "text that starts with BOS twice": tokenizer.encode(f"{BOS}{BOS}a dog"),
        "empty text": tokenizer.encode(""),
    }
    for route, ids in routes.items():
        assert ids[0] == bos, route
        assert ids.count(bos) == 1, route
    assert routes["chat"] == routes["rendered chat as a prompt"]
    assert routes["raw completion"] == routes["text that starts with BOS"]


def test_K1_bos_inside_a_text_is_left_alone() -> None:
    tokenizer = tokenizer_with(WITH_BOS, by_config=False)
    ids = tokenizer.encode(f"a{BOS}b")
    assert ids.count(bos_of(tokenizer)) == 2
    assert ids[0] == ids[2] == bos_of(tokenizer)


def test_K1_a_tokenizer_that_adds_no_bos_gets_none() -> None:
    """SmolLM2 and Qwen: what the text says stands, also when it begins with the token the files call BOS."""
    tokenizer = Tokenizer(byte_level(), config={"bos_token": BOS}, template_sources={"default": WITHOUT_BOS})
    assert tokenizer.bos_id not in tokenizer.encode("a dog")
    assert tokenizer.bos_id not in tokenizer.encode_chat(MESSAGES)
    assert tokenizer.encode(f"{BOS}{BOS}a")[:2] == [tokenizer.bos_id] * 2
