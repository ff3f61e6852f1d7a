"""Times a running server from outside: first-token times of lone prompts, token gaps of small batches.

A client sees no steps, but both are sums of steps whose content follows from the lengths, so they fit the same
constants.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvasir.core.errors import KvasirError
from kvasir.core.progress import Progress, no_progress
from kvasir.simulator.calibration import CalibrationError, Observation
from kvasir.simulator.probe_loads import LIVE_PROBE, PROBE_S, WARM_UP, ProbeLoad, in_rounds
from kvasir.workload.prompts import make_token_ids

_FIRST_ID, _LAST_ID = 1000, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """An OpenAI-compatible server.  ``max_num_batched_tokens`` is what one of its steps holds: nobody outside can see
    that, and a long prompt is computed in that many."""

    base_url: str
    model: str
    max_num_batched_tokens: int
    max_model_len: int
    api_key: str | None = None
    timeout_s: float = 300.0


@dataclass(slots=True)
class _Answer:
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    error: str | None = None


def first_model(base_url: str, api_key: str | None = None) -> tuple[str, int | None]:
    """The first model the server lists, and its context where it says so."""
    data = json.loads(_open(f"{_root(base_url)}/v1/models", None, api_key, 30.0).read())
    models = data.get("data") or []
    if not models:
        raise CalibrationError(f"{base_url} lists no model.")
    context = models[0].get("max_model_len")
    return str(models[0]["id"]), context if isinstance(context, int) else None


def probe_server(
    server: LiveServer,
    loads: Sequence[ProbeLoad] = LIVE_PROBE,
    seconds: float = PROBE_S,
    progress: Progress = no_progress,
) -> list[Observation]:
    """Plays the loads over and over for ``seconds``, each at least once.  The server should have nothing else to do."""
    fitting = [load for load in loads if load.num_prompt + load.num_output <= server.max_model_len]
    _play(server, WARM_UP, seed=0)
    observations: list[Observation] = []
    for load, seed in in_rounds(fitting, seconds, progress):
        observations += observe(load, _play(server, load, seed), server.max_num_batched_tokens)
    return observations


def observe(load: ProbeLoad, answers: Sequence[_Answer], chunk: int) -> list[Observation]:
    """A lone prompt's time to its first token, and the decode steps while all sequences of the load are running."""
    found: list[Observation] = []
    if load.num_sequences == 1:
        found.append(_prefill(load, answers[0].times_s[0] - answers[0].sent_s, chunk))
    begin_s = max(answer.times_s[0] for answer in answers)
    end_s = min(answer.times_s[-1] for answer in answers)
    gaps = [
        (after - before, place)
        for answer in answers
        for place, (before, after) in enumerate(zip(answer.times_s, answer.times_s[1:], strict=False), 1)
        if before >= begin_s and after <= end_s
    ]
    if len(gaps) >= load.num_sequences:
        keys = load.num_sequences * (load.num_prompt + median([place for _, place in gaps]))
        found.append(
            Observation(
                source=f"{load.name}, decode",
                seconds=median([gap for gap, _ in gaps]),
                num_steps=1,
                num_tokens=load.num_sequences,
                num_sequences=load.num_sequences,
                num_pairs=keys,
                num_reads=keys,
            )
        )
    return found


def _prefill(load: ProbeLoad, seconds: float, chunk: int) -> Observation:
    num = load.num_prompt
    ends = [*range(chunk, num, chunk), num]
    return Observation(
        source=f"{load.name}, prefill",
        seconds=seconds,
        num_steps=len(ends),
        num_tokens=num,
        num_sequences=len(ends),
        num_pairs=num * (num + 1) / 2,
        num_reads=sum(ends),
    )


def _play(server: LiveServer, load: ProbeLoad, seed: int) -> list[_Answer]:
    answers = [_Answer(0.0) for _ in range(load.num_sequences)]
    threads = [
        threading.Thread(target=_ask, args=(server, load, 1000 * seed + i, answer), daemon=True)
        for i, answer in enumerate(answers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        if answer.error is not None:
            raise CalibrationError(f"The probe of {server.base_url} failed: {answer.error}")
        if len(answer.times_s) < 2:
            raise CalibrationError(f"{server.base_url} streamed {len(answer.times_s)} chunks; at least 2 are needed.")
    return answers


def _ask(server: LiveServer, load: ProbeLoad, seed: int, answer: _Answer) -> None:
    """One streamed completion; keeps when each chunk with text came."""
    body = {
        "model": server.model,
        "prompt": list(make_token_ids(load.num_prompt, seed, first_id=_FIRST_ID, last_id=_LAST_ID)),
        "max_tokens": load.num_output,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
    }
    try:
        answer.sent_s = time.perf_counter()
        with _open(f"{_root(server.base_url)}/v1/completions", body, server.api_key, server.timeout_s) as response:
            for line in response:
                if line.startswith(b"data:") and b"[DONE]" not in line and json.loads(line[5:]).get("choices"):
                    answer.times_s.append(time.perf_counter())
    except (KvasirError, OSError, ValueError) as error:
        answer.error = str(error)


def _open(url: str, body: dict[str, Any] | None, api_key: str | None, timeout_s: float) -> Any:
    if not url.startswith(("http://", "https://")):
        raise CalibrationError(f"{url!r} is no http address.")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        raise CalibrationError(f"{url} answered {error.code}: {error.read()[:300].decode(errors='replace')}") from error
    except urllib.error.URLError as error:
        raise CalibrationError(f"{url} cannot be reached ({error.reason}).") from error


def _root(base_url: str) -> str:
    return base_url.rstrip("/").removesuffix("/v1")
