"""What a load test costs and blurs: 64 streams from a server whose clock is known, beside the official client."""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.loadtest.client import Answer, Client, Tally
from kvasir.loadtest.record import Place
from kvasir.loadtest.target import Api, BodyMaker, BodyOptions, Target
from kvasir.workload.latency import Distribution

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from scripted_server import Running, scripted_server  # pyright: ignore[reportMissingImports]

RESULTS = Path(__file__).parent / "results"
NUM_STREAMS, NUM_CHUNKS = 64, 200
GAP_S = 0.02
CPU_TARGET_US, BLUR_TARGET_MS = 60.0, 2.0

Times = dict[int, list[float]]
"""By the number that the server gave a request: when it was sent, then when each chunk came."""


async def play_ours(url: str, script: dict[str, object]) -> Times:
    target = Target.from_url(url, Api.COMPLETIONS)
    client = Client(target, timeout_s=120.0)
    bodies = BodyMaker(model="scripted", api=target.api, options=BodyOptions(extra={"script": script}))

    async def one() -> tuple[int, list[float]]:
        answer = Answer(Place(session=0, turn=1, planned_s=0.0), 4, Tally())
        await client.send(bodies.body([1, 2, 3, 4], NUM_CHUNKS), answer)
        record = answer.record(0.0)
        assert record.is_ok, record.failure
        return int(record.text.split()[0]), [record.sent_s, *record.chunk_times_s]

    found = dict(await asyncio.gather(*(one() for _ in range(NUM_STREAMS))))
    client.close()
    return found


async def play_official(url: str, script: dict[str, object]) -> Times:
    """The same with OpenAI's own asynchronous client."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def one() -> tuple[int, list[float]]:
            times = [time.perf_counter()]
            text = ""
            stream = await client.completions.create(
                model="scripted",
                prompt=[1, 2, 3, 4],
                max_tokens=NUM_CHUNKS,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"script": script},
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].text:
                    times.append(time.perf_counter())
                    text += chunk.choices[0].text
            return int(text.split()[0]), times

        return dict(await asyncio.gather(*(one() for _ in range(NUM_STREAMS))))


def measure(server: Running, name: str, play: Callable[..., Awaitable[Times]]) -> dict[str, float]:
    """CPU time per chunk, and how long after its sending, by the server's clock, a chunk is stamped."""
    script: dict[str, object] = {"gap_s": GAP_S, "ttft_s": 0.2, "is_named": True, "client": f"{name}-{time.time()}"}
    cpu_s = time.process_time()
    times = asyncio.run(play(server.url, script))  # type: ignore[arg-type]
    cpu_s = time.process_time() - cpu_s
    log = {entry["number"]: entry for entry in server.log() if entry["body"].get("script") == script}
    chunks = []
    for number, (_, *came_s) in times.items():
        entry = log[number]
        assert len(came_s) == len(entry["sent_s"]) == NUM_CHUNKS
        chunks += [came - sent for came, sent in zip(came_s, entry["sent_s"], strict=True)]
    chunk = Distribution.of(chunks)
    assert chunk is not None
    return {
        "cpu_us_per_chunk": 1e6 * cpu_s / (NUM_STREAMS * NUM_CHUNKS),
        "chunk_delay_median_ms": 1000 * chunk.median,
        "chunk_delay_p99_ms": 1000 * chunk.percentiles[99.0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS / "load_test_cost.json")
    arguments = parser.parse_args()
    print(f"{NUM_STREAMS} streams, a chunk each {1000 * GAP_S:.0f} ms: {NUM_STREAMS / GAP_S:.0f} chunks/s are offered")
    found: dict[str, list[dict[str, float]]] = {"ours": [], "openai": []}
    with scripted_server() as server:
        asyncio.run(play_official(server.url, {"is_named": True}))  # its imports are no part of the measurement
        for run in range(arguments.runs):
            for name, play in (("ours", play_ours), ("openai", play_official)):
                found[name].append(measure(server, name, play))
                shown = ", ".join(f"{key} {value:.2f}" for key, value in found[name][-1].items())
                print(f"run {run + 1}, {name}: {shown}")
    medians = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()
    }
    ours, official = medians["ours"], medians["openai"]
    writer = ResultWriter(
        path=arguments.output, runs=arguments.runs, measurements={"num_streams": NUM_STREAMS, "gap_s": GAP_S, **found}
    )
    writer.claim(
        f"load test: CPU time a chunk at {NUM_STREAMS} streams",
        ours["cpu_us_per_chunk"],
        "us",
        better=Better.LOWER,
        target=CPU_TARGET_US,
    )
    writer.claim(
        "load test: CPU time a chunk, of the official client's",
        ours["cpu_us_per_chunk"] / official["cpu_us_per_chunk"],
        "of 1",
        better=Better.LOWER,
    )
    writer.claim(
        f"load test: from a chunk's sending to its stamp at {NUM_STREAMS} streams, median",
        ours["chunk_delay_median_ms"],
        "ms",
        better=Better.LOWER,
        target=BLUR_TARGET_MS,
    )
    writer.claim(
        "load test: the same with the official client",
        official["chunk_delay_median_ms"],
        "ms",
        better=Better.LOWER,
    )
    writer.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
