"""Where a chat's instructions end: what eviction must leave alone."""

from kvasir.text.tokenizer import Tokenizer
from tiny_tokenizers import BOS, EOS, byte_level

TURNS = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"
DEFAULT = "{% if messages[0]['role'] != 'system' %}[system] You are kind.{% endif %}"
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}" + TURNS
USER = {"role": "user", "content": "What is the answer?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def tokenizer(template: str) -> Tokenizer:
    return Tokenizer(byte_level(), config={"bos_token": BOS, "eos_token": EOS}, template_sources={"default": template})


def pinned_text(template: str, messages, tools=None) -> str:
    found = tokenizer(template)
    ids = found.encode_chat(messages, tools=tools)
    return found.decode(ids[: found.num_instruction_tokens(messages, tools)], skip_special_tokens=False)


def test_the_system_message_and_the_header_of_the_first_turn():
    assert pinned_text(TURNS, [SYSTEM, USER]) == f"{BOS}[system] Be brief.[user] "
    assert pinned_text(TURNS, [SYSTEM, {"role": "developer", "content": "Be kind."}, USER]).endswith("kind.[user] ")
    assert pinned_text(TURNS, [USER]) == f"{BOS}[user] "


def test_what_the_template_says_by_itself_is_an_instruction_too():
    assert pinned_text(DEFAULT + TURNS, [USER]) == f"[system] You are kind.{BOS}[user] "
    assert pinned_text("{{ tools | tojson }}" + TURNS, [USER], tools=[{"name": "f"}]).startswith('[{"name": "f"}]')


def test_a_later_system_message_is_part_of_the_conversation():
    assert pinned_text(TURNS, [SYSTEM, USER, SYSTEM, USER]) == f"{BOS}[system] Be brief.[user] "


def test_instructions_alone_are_instructions_to_the_end():
    assert pinned_text(TURNS, [SYSTEM]) == f"{BOS}[system] Be brief."


def test_what_the_user_says_does_not_move_the_end():
    found = tokenizer(TURNS)
    sizes = {found.num_instruction_tokens([SYSTEM, {"role": "user", "content": text}]) for text in ("0", "x", "", "é")}
    assert len(sizes) == 1


def test_a_template_that_refuses_the_probe_pins_nothing():
    assert tokenizer(STRICT).num_instruction_tokens([{"role": "assistant", "content": "Hi."}, USER]) == 0
