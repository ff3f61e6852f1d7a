"""A simulation as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

Every instance is a process.  Its steps are slices on one track, its requests nested slices (waiting, prefill, decode)
on tracks of their own, its blocks and queue counters.
"""

import json
from pathlib import Path
from typing import Any

from kvasir.simulator.instance import Instance, StepStart
from kvasir.simulator.outcome import RequestOutcome
from kvasir.simulator.step_load import StepLoad

MAX_EVENTS = 300_000
"""What viewers still open; later events are left out, and the trace says so."""
_COUNTER_EVERY = 8
"""Steps between samples of the counters."""


class ChromeTrace:
    """Collects events; times in microseconds of simulated time."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._events: list[dict[str, Any]] = []
        self._max_events = max_events
        self._num_steps = 0
        self._instances: set[int] = set()
        self.num_left_out = 0

    def on_step(self, instance: Instance, start: StepStart, load: StepLoad, now_s: float) -> None:
        """``load`` is that of the first step when several were foreseen."""
        if not self._has_room(1):
            return
        self._know(instance)
        decode_only = load.num_tokens == load.num_decodes
        name = "decode" if decode_only else ("prefill" if load.num_decodes == 0 else "prefill + decode")
        if start.num_steps > 1:
            name = f"{name} x {start.num_steps}"
        self._events.append(
            {
                "name": name,
                "cat": "step",
                "ph": "X",
                "pid": instance.instance_id,
                "tid": 0,
                "ts": _us(now_s),
                "dur": _us(start.end_s - now_s),
                "args": {
                    "sequences": load.num_sequences,
                    "tokens": load.num_tokens,
                    "decodes": load.num_decodes,
                    "steps": start.num_steps,
                },
            }
        )
        self._num_steps += 1
        if self._num_steps % _COUNTER_EVERY == 1:
            self._count(instance, now_s)

    def on_request(self, outcome: RequestOutcome) -> None:
        if not self._has_room(8):
            return
        begin_s = outcome.arrival_s
        parts = (
            (f"request {outcome.request_id}", 0.0, outcome.e2e_s),
            ("waiting", 0.0, outcome.queue_s),
            ("prefill", outcome.queue_s, outcome.ttft_s),
            ("decode", outcome.ttft_s, outcome.e2e_s),
        )
        details = {
            "prompt_tokens": outcome.num_prompt_tokens,
            "cached_tokens": outcome.num_cached_tokens,
            "output_tokens": outcome.num_output_tokens,
            "preemptions": outcome.num_preemptions,
        }
        for place, (name, start_s, end_s) in enumerate(parts):
            common = {"name": name, "cat": "request", "id": outcome.request_id, "pid": outcome.instance_id, "tid": 1}
            self._events.append(
                common | {"ph": "b", "ts": _us(begin_s + start_s), "args": details if place == 0 else {}}
            )
            self._events.append(common | {"ph": "e", "ts": _us(begin_s + end_s)})

    def write(self, path: Path) -> None:
        names = [
            {"name": "process_name", "ph": "M", "pid": i, "args": {"name": f"instance {i}"}}
            for i in sorted(self._instances)
        ]
        names += [
            {"name": "thread_name", "ph": "M", "pid": i, "tid": 0, "args": {"name": "steps"}}
            for i in sorted(self._instances)
        ]
        data = {
            "traceEvents": names + self._events,
            "displayTimeUnit": "ms",
            "otherData": {"made_by": "kvasir simulate", "events_left_out": self.num_left_out},
        }
        path.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")

    def _count(self, instance: Instance, now_s: float) -> None:
        pools = instance.manager.pools
        counters = {
            "blocks": {"used": sum(p.num_used for p in pools), "cached": sum(p.num_cached for p in pools)},
            "sequences": {"running": len(instance.scheduler.running), "waiting": len(instance.scheduler.waiting)},
        }
        for name, values in counters.items():
            self._events.append(
                {"name": name, "ph": "C", "pid": instance.instance_id, "ts": _us(now_s), "args": values}
            )

    def _know(self, instance: Instance) -> None:
        self._instances.add(instance.instance_id)

    def _has_room(self, count: int) -> bool:
        if len(self._events) + count <= self._max_events:
            return True
        self.num_left_out += count
        return False


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 1)
