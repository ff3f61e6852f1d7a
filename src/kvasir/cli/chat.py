"""``kvasir chat``: a conversation in this terminal; every turn shows what it cost and how much was cached."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.chat_lines import ChatLines, TurnFigures
from kvasir.cli.console import print_error
from kvasir.cli.engine_options import engine_options
from kvasir.cli.options import with_groups
from kvasir.cli.progress import progress_bars
from kvasir.cli.sampling_options import sampling_options
from kvasir.core.errors import BadRequestError
from kvasir.core.sampling import SamplingParams
from kvasir.engine.config import EngineConfig

if TYPE_CHECKING:
    from kvasir.engine.llm import LLM, TextStream
    from kvasir.engine.outputs import RequestOutput

Message = dict[str, str]

_HELP = "/reset forgets the conversation, /quit ends it; Ctrl-C cuts an answer short."


@with_groups(engine=engine_options(), sampling=sampling_options())
def run(
    engine: EngineConfig,
    sampling: SamplingParams,
    system: Annotated[str | None, typer.Option("--system", help="Instructions that open the conversation.")] = None,
) -> None:
    from kvasir.engine.llm import LLM

    with progress_bars() as progress:
        llm = LLM.from_config(engine, progress)
    lines = ChatLines()
    if lines.is_terminal:
        lines.note(f"{llm.engine.folder.name} is ready. {_HELP}")
    with llm:
        Conversation(llm, sampling, system, lines).run()


class Conversation:
    """The messages so far and the loop that extends them.  A turn that is refused leaves them as they were."""

    def __init__(self, llm: "LLM", sampling: SamplingParams, system: str | None, lines: ChatLines) -> None:
        self._llm = llm
        self._sampling = sampling
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self._lines = lines
        self.messages = list(self._opening)

    def run(self) -> None:
        """Until /quit or the end of the input."""
        while (line := self._lines.read()) is not None and line != "/quit":
            if line == "/reset":
                self.messages = list(self._opening)
                self._lines.note("The conversation starts anew.")
            elif line == "/help":
                self._lines.note(_HELP)
            elif line:
                self._turn(line)

    def _turn(self, text: str) -> None:
        asked = [*self.messages, {"role": "user", "content": text}]
        started_s = time.perf_counter()
        try:
            stream = self._llm.chat_stream(asked, self._sampling)
        except BadRequestError as error:
            print_error(f"{error} Start anew with /reset.")
            return
        answer = self._show(stream, started_s)
        self.messages = [*asked, {"role": "assistant", "content": answer}]

    def _show(self, stream: "TextStream", started_s: float) -> str:
        """Print the answer as it comes.  Ctrl-C ends the answer, not the conversation."""
        parts: list[str] = []
        first_s = 0.0
        with _interrupts() as is_interrupted, stream:
            for chunk in stream:
                first_s = first_s or time.perf_counter()
                parts.append(chunk.text)
                self._lines.write(chunk.text)
                if is_interrupted():
                    break
        output = stream.output
        self._lines.end_reply(None if output is None else _figures(output, first_s - started_s, first_s))
        if output is not None and output.error is not None:
            print_error(output.error)
        return "".join(parts)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C was pressed since.  A step must run to its end, so nothing is raised in the midst of it."""
    presses: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: presses.append(number))
    try:
        yield lambda: bool(presses)
    finally:
        signal.signal(signal.SIGINT, before)


def _figures(output: "RequestOutput", ttft_s: float, first_s: float) -> TurnFigures:
    num_tokens = len(output.outputs[0].token_ids)
    writing_s = time.perf_counter() - first_s
    return TurnFigures(
        ttft_s=ttft_s,
        num_prompt_tokens=len(output.prompt_token_ids),
        num_cached_tokens=output.num_cached_tokens,
        num_output_tokens=num_tokens,
        tokens_per_s=(num_tokens - 1) / writing_s if num_tokens > 1 else None,
    )
