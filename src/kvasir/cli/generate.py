"""``kvasir generate``: a file of requests through continuous batching, an answer line for every request line."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from kvasir.cli.console import print_note
from kvasir.cli.engine_options import engine_options
from kvasir.cli.options import with_groups
from kvasir.cli.progress import progress_bars
from kvasir.core.errors import BadRequestError, KvasirError, OverloadedError
from kvasir.core.progress import Progress
from kvasir.engine.config import EngineConfig

if TYPE_CHECKING:
    from kvasir.cli.batch_engine import BatchEngine, LineAnswer

_STANDARD = Path("-")


@with_groups(engine=engine_options(has_model_argument=False))
def run(
    source: Annotated[Path, typer.Argument(metavar="[FILE]", help="JSON lines; - is standard input.")] = _STANDARD,
    target: Annotated[
        Path, typer.Option("--output", "-o", help="File for the answers; - is standard output.")
    ] = _STANDARD,
    engine: EngineConfig = EngineConfig(),  # replaced by what the options say
) -> None:
    from kvasir.cli.batch_engine import BatchEngine

    with _reading(source) as lines, _writing(target, source) as answers, progress_bars() as progress:
        batch = Batch(BatchEngine.open(engine, progress), answers, progress)
        batch.run(lines)
    print_note(batch.summary())
    if batch.num_failed:
        raise typer.Exit(1)


class Batch:
    """Feeds lines, keeps the engine busy, and writes one record a line in the order of the lines."""

    def __init__(self, engine: "BatchEngine", answers: TextIO, progress: Progress) -> None:
        self._engine = engine
        self._answers = answers
        self._progress = progress
        self._records: dict[int, dict[str, Any]] = {}
        """Finished records by line, until all before them are written."""
        self._order: list[int] = []
        self._num_written = 0
        self._num_output_tokens = 0
        self._started_s = time.perf_counter()
        self.num_failed = 0

    def run(self, lines: list[str]) -> None:
        waiting = [(number, text) for number, text in enumerate(lines, 1) if text.strip()]
        self._order = [number for number, _ in waiting]
        waiting.reverse()
        while waiting or self._engine.num_in_flight:
            self._feed(waiting)
            if self._engine.num_in_flight:
                for answer in self._engine.step():
                    self._take(answer)
            self._write()
        self._engine.close()

    def summary(self) -> str:
        elapsed_s = time.perf_counter() - self._started_s
        failed = f", {self.num_failed} of them with an error" if self.num_failed else ""
        return (
            f"{self._num_written} lines answered{failed}: {self._num_output_tokens:,} tokens in {elapsed_s:.1f} s, "
            f"{self._num_output_tokens / elapsed_s:.1f} tok/s"
        )

    def _feed(self, waiting: list[tuple[int, str]]) -> None:
        """Submit from the end of ``waiting`` (the next line) while there is room; a bad line is answered at once."""
        from kvasir.cli.batch_lines import custom_id_of, parse_line

        while waiting and self._engine.has_room:
            number, text = waiting[-1]
            try:
                self._engine.submit(parse_line(number, text))
            except OverloadedError:
                if self._engine.num_in_flight == 0:
                    raise
                return
            except BadRequestError as error:
                self._fail(number, custom_id_of(text), error)
            waiting.pop()

    def _take(self, answer: "LineAnswer") -> None:
        number, custom_id = answer.line.number, answer.line.custom_id
        if answer.error is not None:
            self._fail(number, custom_id, KvasirError(f"The request failed in the engine: {answer.error}."))
            return
        self._num_output_tokens += answer.usage.completion_tokens
        response = {"status_code": 200, "body": self._engine.response_body(answer)}
        self._records[number] = _record(number, custom_id, response=response)

    def _fail(self, number: int, custom_id: str | None, error: KvasirError) -> None:
        self.num_failed += 1
        details = {
            "code": error.code,
            "message": str(error),
            "param": getattr(error, "param", None),
            "type": error.error_type,
        }
        self._records[number] = _record(number, custom_id, error=details)

    def _write(self) -> None:
        """Every record whose predecessors are written; order of lines, not of ends."""
        while self._num_written < len(self._order) and self._order[self._num_written] in self._records:
            record = self._records.pop(self._order[self._num_written])
            self._answers.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._num_written += 1
        self._answers.flush()
        if self._order:
            num_done = self._num_written + len(self._records)
            self._progress(f"answer {len(self._order)} lines", num_done / len(self._order))


def _record(
    number: int, custom_id: str | None, *, response: dict[str, Any] | None = None, error: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"line": number, "custom_id": custom_id, "response": response, "error": error}


@contextmanager
def _reading(source: Path) -> Iterator[list[str]]:
    if source == _STANDARD:
        yield sys.stdin.read().splitlines()
        return
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KvasirError(f"The requests in {source} cannot be read: {error}.") from error
    yield text.splitlines()


@contextmanager
def _writing(target: Path, source: Path) -> Iterator[TextIO]:
    if target == _STANDARD:
        yield sys.stdout
        return
    if target.exists() and source != _STANDARD and target.samefile(source):
        raise KvasirError(f"The answers would overwrite the requests in {source}; give another --output.")
    try:
        file = target.open("w", encoding="utf-8")
    except OSError as error:
        raise KvasirError(f"The answers cannot be written to {target}: {error}.") from error
    with file:
        yield file
