"""A long chat, turn by turn: how long each turn waits for its first token, and how much of it was cached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.workload.driver import SteppedEngine, play
from kvasir.workload.prompts import make_text_of


class ChatTokenizer(Protocol):
    """As much of a tokenizer as a chat needs."""

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    num_turns: int = 15
    new_tokens_per_turn: int = 100
    output_tokens_per_turn: int = 64
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One turn as it went; ``num_prompt_tokens`` is the whole conversation so far."""

    turn: int
    num_prompt_tokens: int
    num_cached_tokens: int
    ttft_s: float
    output_tokens_per_s: float
    reply: str


def play_chat(
    engine: SteppedEngine,
    tokenizer: ChatTokenizer,
    shape: ChatShape,
    on_turn: Callable[[ChatTurn], None] | None = None,
) -> list[ChatTurn]:
    """Greedy, fixed output lengths; the model's own replies become part of the conversation."""
    messages: list[dict[str, str]] = []
    turns: list[ChatTurn] = []
    sampling = SamplingParams(temperature=0.0, max_tokens=shape.output_tokens_per_turn, ignore_eos=True)
    for number in range(1, shape.num_turns + 1):
        text = make_text_of(
            shape.new_tokens_per_turn,
            seed=shape.seed * 1000 + number,
            count_tokens=lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
        )
        messages.append({"role": "user", "content": text})
        request = Request(
            request_id=f"turn-{number}", prompt_token_ids=tuple(tokenizer.encode_chat(messages)), sampling=sampling
        )
        load = play(engine, [request])
        ids, times = load.token_ids[request.request_id, 0], load.token_times_s[request.request_id, 0]
        reply = tokenizer.decode(ids, skip_special_tokens=True)
        messages.append({"role": "assistant", "content": reply})
        turn = ChatTurn(
            turn=number,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=load.finished[0].num_cached_tokens,
            ttft_s=times[0],
            output_tokens_per_s=(len(times) - 1) / (times[-1] - times[0]),
            reply=reply,
        )
        turns.append(turn)
        if on_turn is not None:
            on_turn(turn)
    return turns
