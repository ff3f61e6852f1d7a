"""What a whole answer is written from, wherever it was generated."""

from collections.abc import Sequence
from typing import Protocol

from kvasir.server.responses import PromptTokensDetails, Usage
from kvasir.text.output import OutputAssembler


class FinishedAnswer(Protocol):
    """One assembler a choice, in order, all at their ends; and what the answer took."""

    @property
    def assemblers(self) -> Sequence[OutputAssembler]: ...

    @property
    def usage(self) -> Usage: ...


def make_usage(num_prompt_tokens: int, num_cached_tokens: int, assemblers: Sequence[OutputAssembler]) -> Usage:
    num_output_tokens = sum(assembler.num_tokens for assembler in assemblers)
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached_tokens),
    )
