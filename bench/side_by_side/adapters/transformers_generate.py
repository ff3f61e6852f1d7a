"""Hugging Face transformers: plain ``generate``; requests of one length that wait together are one static batch."""

import asyncio
import importlib
import os
import time
from importlib import metadata
from typing import Any

from side_by_side.adapters import worker
from side_by_side.wire import Answer, Settings

_GATHER_S = 0.01
"""How long a request waits for others that were sent with it."""


class TransformersGenerate:
    """One call to ``generate`` at a time; its stopping criterion is called once a token and takes the time."""

    def __init__(self, model: Any, torch: Any, about: dict[str, Any]) -> None:
        self._model = model
        self._torch = torch
        self._about = about
        self._waiting: list[tuple[list[int], int, float, asyncio.Future[Answer]]] = []
        self._worker: asyncio.Task[None] | None = None
        self.started_s = None
        self.pid = os.getpid()

    async def generate(self, prompt: list[int], num_output: int) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, num_output, time.monotonic(), answered))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answered

    async def about(self) -> dict[str, Any]:
        return self._about

    async def close(self) -> None:
        """Nothing runs beside the process."""

    async def _work(self) -> None:
        await asyncio.sleep(_GATHER_S)
        while self._waiting:
            shape = (len(self._waiting[0][0]), self._waiting[0][1])
            batch = [entry for entry in self._waiting if (len(entry[0]), entry[1]) == shape]
            self._waiting = [entry for entry in self._waiting if (len(entry[0]), entry[1]) != shape]
            times_s, rows = await asyncio.to_thread(self._run, [entry[0] for entry in batch], shape[1])
            for (_, _, sent_s, answered), row in zip(batch, rows, strict=True):
                answered.set_result(Answer(number=0, sent_s=sent_s, times_s=times_s, token_ids=row))

    def _run(self, prompts: list[list[int]], num_output: int) -> tuple[list[float], list[list[int]]]:
        torch = self._torch
        times_s: list[float] = []

        def stamp(token_ids: Any, scores: Any, **_: Any) -> Any:
            times_s.append(time.monotonic())
            return torch.zeros(token_ids.shape[0], dtype=torch.bool)

        prompt = torch.tensor(prompts)
        with torch.inference_mode():
            whole = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=num_output,
                do_sample=False,
                stopping_criteria=[stamp],
                pad_token_id=0,
            )
        return times_s, whole[:, prompt.shape[1] :].tolist()


async def open_program(settings: Settings) -> TransformersGenerate:
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    torch.set_num_threads(settings.num_threads)
    dtype = settings.options["dtype"]
    model = transformers.AutoModelForCausalLM.from_pretrained(settings.model, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None  # exactly as many tokens as asked for
    about = {"version": metadata.version("transformers"), "torch": metadata.version("torch"), "flags": {"dtype": dtype}}
    return TransformersGenerate(model, torch, about)


if __name__ == "__main__":
    worker.run(open_program)
