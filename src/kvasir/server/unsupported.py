"""Fields of the OpenAI and vLLM protocols that Kvasir knows and does not serve: refused by name, never ignored.

Clients and their libraries send many of these with a value that asks for nothing (``"tools": []``); those values pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.core.errors import BadRequestError


@dataclass(frozen=True, slots=True)
class Unsupported:
    """``neutral``: values, besides null, that ask for nothing.  ``instead``: what a person can do."""

    neutral: tuple[Any, ...] = ()
    instead: str = "leave it out"


_TOOLS = "tool calling is not supported yet; leave it out"
_GRAMMAR = "constrained output is not supported yet; leave it out and ask for the format in the prompt"
_AUDIO = "only text goes in and comes out"

_BOTH: dict[str, Unsupported] = {
    "best_of": Unsupported((1,), "use n"),
    "use_beam_search": Unsupported((False,), "use n with a temperature"),
    "length_penalty": Unsupported((1.0,), "it belongs to beam search, which is not supported"),
    "early_stopping": Unsupported((False,), "it belongs to beam search, which is not supported"),
    "guided_json": Unsupported((), _GRAMMAR),
    "guided_regex": Unsupported((), _GRAMMAR),
    "guided_choice": Unsupported((), _GRAMMAR),
    "guided_grammar": Unsupported((), _GRAMMAR),
    "structured_outputs": Unsupported((), _GRAMMAR),
    "response_format": Unsupported(({"type": "text"},), _GRAMMAR),
    "allowed_token_ids": Unsupported((), "use logit_bias"),
    "bad_words": Unsupported(([],), "use logit_bias"),
    "prompt_logprobs": Unsupported((), "log-probabilities are given for generated tokens only"),
    "truncate_prompt_tokens": Unsupported((), "a prompt is never cut; send a shorter one"),
    "spaces_between_special_tokens": Unsupported((True,)),
    "return_tokens_as_token_ids": Unsupported((False,)),
    "metadata": Unsupported(({},), "nothing is stored"),
    "store": Unsupported((False,), "nothing is stored"),
    "service_tier": Unsupported(("auto", "default"), "use priority on a server with --scheduling-policy priority"),
}

CHAT: dict[str, Unsupported] = _BOTH | {
    "tools": Unsupported(([],), _TOOLS),
    "tool_choice": Unsupported(("none", "auto"), _TOOLS),
    "parallel_tool_calls": Unsupported((True,), _TOOLS),
    "functions": Unsupported(([],), _TOOLS),
    "function_call": Unsupported(("none", "auto"), _TOOLS),
    "modalities": Unsupported((["text"],), _AUDIO),
    "audio": Unsupported((), _AUDIO),
    "prediction": Unsupported(),
    "reasoning_effort": Unsupported((), "give the template's own switch in chat_template_kwargs"),
    "verbosity": Unsupported((), "say it in the prompt"),
    "web_search_options": Unsupported(),
    "prompt_cache_key": Unsupported((), "prefix sharing is automatic; cache_salt separates callers"),
    "prompt_cache_retention": Unsupported((), "prefix sharing is automatic"),
    "safety_identifier": Unsupported((), "use user"),
    "documents": Unsupported(([],), "put them into the messages"),
    "chat_template": Unsupported((), "the model's own template is used; its options go into chat_template_kwargs"),
    "continue_final_message": Unsupported((False,), "use /v1/completions with the rendered text"),
    "echo": Unsupported((False,), "use /v1/completions"),
    "return_token_ids": Unsupported((False,), "use /v1/completions"),
}

COMPLETION: dict[str, Unsupported] = _BOTH | {
    "suffix": Unsupported(("",), "insertion is not supported"),
    "messages": Unsupported((), "use /v1/chat/completions"),
    "tools": Unsupported(([],), _TOOLS),
}

MESSAGE: dict[str, Unsupported] = {
    "tool_calls": Unsupported(([],), _TOOLS),
    "tool_call_id": Unsupported((), _TOOLS),
    "function_call": Unsupported((), _TOOLS),
    "refusal": Unsupported(),
    "audio": Unsupported((), _AUDIO),
    "annotations": Unsupported(([],)),
    "reasoning": Unsupported((), "put it into content"),
    "reasoning_content": Unsupported((), "put it into content"),
}


def drop_neutral(fields: Mapping[str, Any], table: Mapping[str, Unsupported], where: str = "") -> dict[str, Any]:
    """``fields`` without the known unsupported ones that ask for nothing; the input is not changed.

    Raises ``BadRequestError`` naming the first that asks for something.
    """
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        entry = table.get(name)
        if entry is None:
            kept[name] = value
        elif value is not None and not any(_is_same(value, neutral) for neutral in entry.neutral):
            raise BadRequestError(f"{where}{name} is not supported: {entry.instead}.", param=where + name)
    return kept


def _is_same(value: Any, neutral: Any) -> bool:
    # True == 1 in Python, but not for somebody who reads JSON.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
