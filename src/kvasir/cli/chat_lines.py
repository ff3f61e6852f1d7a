"""The lines of a chat in a terminal: where a person types, where replies stream, where the figures go."""

import contextlib
import sys
from dataclasses import dataclass

_DIM, _RESET = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFigures:
    """What one turn cost.  ``tokens_per_s`` None: fewer than two tokens came."""

    ttft_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    tokens_per_s: float | None

    def describe(self) -> str:
        speed = "" if self.tokens_per_s is None else f" · {self.tokens_per_s:.1f} tok/s"
        return (
            f"first token {self.ttft_s:.2f} s · {self.num_cached_tokens:,} of {self.num_prompt_tokens:,} prompt tokens "
            f"cached · {self.num_output_tokens} tokens{speed}"
        )


class ChatLines:
    """Replies go to stdout as they come; prompts and figures too on a terminal, to stderr (figures only) elsewhere."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if self.is_terminal:
            # Line editing and history for input(); some builds of Python come without it.
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401

    def read(self) -> str | None:
        """What the person typed; None at the end of the input."""
        try:
            return input("> " if self.is_terminal else "").strip()
        except (EOFError, KeyboardInterrupt):
            if self.is_terminal:
                print()
            return None

    def write(self, text: str) -> None:
        print(text, end="", flush=True)

    def end_reply(self, figures: TurnFigures | None) -> None:
        print(flush=True)
        if figures is not None:
            self.note(figures.describe())

    def note(self, sentence: str) -> None:
        if self.is_terminal:
            print(f"{_DIM}{sentence}{_RESET}\n" if _has_colours() else f"[{sentence}]\n", flush=True)
        else:
            print(f"[{sentence}]", file=sys.stderr, flush=True)


def _has_colours() -> bool:
    import os

    return os.environ.get("TERM", "dumb") != "dumb" and "NO_COLOR" not in os.environ
