"""OpenVINO GenAI: its continuous-batching pipeline in this process; the package ships no HTTP server."""

import asyncio
import importlib
import os
import threading
import time
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from side_by_side.adapters import worker
from side_by_side.wire import Answer, Settings


@dataclass(kw_only=True)
class _Stream:
    """A request on its way: the thread that steps fills it and then settles ``answered``."""

    prompt: list[int]
    num_output: int
    sent_s: float
    answered: "asyncio.Future[Answer]"
    handle: Any = None
    times_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class OpenvinoPipeline:
    """One thread adds what has come, takes a step while anything runs, and reads tokens after each step."""

    def __init__(self, pipeline: Any, genai: Any, openvino: Any, about: dict[str, Any]) -> None:
        self._pipeline = pipeline
        self._genai = genai
        self._openvino = openvino
        self._about = about
        self._loop = asyncio.get_running_loop()
        self._arrived: list[_Stream] = []
        self._wakes = threading.Condition()
        self._num_requests = 0
        self.started_s = None
        self.pid = os.getpid()
        threading.Thread(target=self._step_for_ever, daemon=True).start()

    async def generate(self, prompt: list[int], num_output: int) -> Answer:
        stream = _Stream(
            prompt=prompt, num_output=num_output, sent_s=time.monotonic(), answered=self._loop.create_future()
        )
        with self._wakes:
            self._arrived.append(stream)
            self._wakes.notify()
        return await stream.answered

    async def about(self) -> dict[str, Any]:
        return self._about

    async def close(self) -> None:
        """The thread ends with the process."""

    def _step_for_ever(self) -> None:
        running: list[_Stream] = []
        while True:
            with self._wakes:
                while not self._arrived and not running:
                    self._wakes.wait()
                arrived, self._arrived = self._arrived, []
            for stream in arrived:
                self._add(stream)
            running = self._step([*running, *arrived])

    def _add(self, stream: _Stream) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = stream.num_output
        config.ignore_eos = True
        config.do_sample = False
        self._num_requests += 1
        tensor = self._openvino.Tensor(_row(stream.prompt))
        stream.handle = self._pipeline.add_request(self._num_requests, tensor, config)

    def _step(self, running: list[_Stream]) -> list[_Stream]:
        """Those that go on after one step."""
        self._pipeline.step()
        time_s = time.monotonic()
        left: list[_Stream] = []
        for stream in running:
            if stream.handle.can_read():
                for output in stream.handle.read().values():
                    stream.token_ids += output.generated_ids
                    stream.times_s += [time_s] * len(output.generated_ids)
            if len(stream.token_ids) >= stream.num_output:
                self._settle(stream, None)
            elif (status := stream.handle.get_status()) in self._dead_ends():
                self._settle(stream, f"ended with {status}")
            else:
                left.append(stream)
        return left

    def _dead_ends(self) -> tuple[Any, ...]:
        status = self._genai.GenerationStatus
        return (status.FINISHED, status.IGNORED, status.CANCEL, status.STOP)

    def _settle(self, stream: _Stream, error: str | None) -> None:
        answer = Answer(number=0, sent_s=stream.sent_s, times_s=stream.times_s, token_ids=stream.token_ids, error=error)
        self._loop.call_soon_threadsafe(stream.answered.set_result, answer)


def _row(prompt: list[int]) -> Any:
    numpy = importlib.import_module("numpy")
    return numpy.array([prompt], dtype=numpy.int64)


async def open_program(settings: Settings) -> OpenvinoPipeline:
    genai = importlib.import_module("openvino_genai")
    openvino = importlib.import_module("openvino")
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = settings.has_prefix_cache
    for name, value in settings.options["scheduler"].items():
        setattr(scheduler, name, value)
    properties = {"INFERENCE_NUM_THREADS": settings.num_threads, **settings.options["properties"]}
    if settings.kv:
        properties["KV_CACHE_PRECISION"] = settings.kv
    pipeline = genai.ContinuousBatchingPipeline(settings.model, scheduler, "CPU", properties)
    about = {
        "version": metadata.version("openvino-genai"),
        "flags": {**properties, **settings.options["scheduler"], "enable_prefix_caching": settings.has_prefix_cache},
    }
    return OpenvinoPipeline(pipeline, genai, openvino, about)


if __name__ == "__main__":
    worker.run(open_program)
