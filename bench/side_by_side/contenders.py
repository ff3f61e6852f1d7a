"""Who takes part: each program with the weights, the KV format and the flags it is measured with."""

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvasir.engine.pool_plan import auto_kv_dtype
from kvasir.kernels.choice import KernelChoice
from kvasir.kv.format_spec import KVDtype
from side_by_side.places import environment_python, llama_server, model_file
from side_by_side.wire import Settings
from side_by_side.workloads import WORKLOADS, Workload

ADAPTERS = "side_by_side.adapters"
KVASIR = "kvasir"
POOL = "2GiB"
"""Of KV memory, for Kvasir and for the peers that take such a number: more than any workload needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """``kv_bits`` sorts the claims; ``kv`` is the program's own word for it.  ``leaves_out`` are workloads that the
    program has nothing for, ``once`` those that are too slow to repeat; both with the reason."""

    name: str
    program: str
    module: str
    python: Path
    executable: Path
    model: Path
    kv: str
    kv_bits: int
    weights: str
    options: dict[str, Any] = field(default_factory=dict)
    leaves_out: dict[str, str] = field(default_factory=dict)
    once: dict[str, str] = field(default_factory=dict)

    @property
    def is_kvasir(self) -> bool:
        return self.program == KVASIR

    @property
    def missing(self) -> str | None:
        """What keeps it from running here; None: it can run."""
        for path in (self.python, self.executable, self.model):
            if not path.exists():
                return f"{path} is not there: run `make peers`"
        return None

    def settings(self, workload: Workload, num_threads: int) -> Settings:
        return Settings(
            model=str(self.model),
            program=str(self.executable),
            kv=self.kv,
            num_threads=num_threads,
            context_tokens=workload.context_tokens,
            num_parallel=workload.num_parallel,
            has_prefix_cache=workload.has_prefix_cache,
            options=self.options,
        )


_NO_PREFIX_CACHE = "has no prefix cache"
_SLOW = "far from the best and slow: one round"
_LLAMA_ONCE: dict[str, str] = dict.fromkeys(("W2-4096", "W2-7500", "W3", "W5", "W4-off", "W5-off", "W6", "W7"), _SLOW)


def _only(*workloads: str) -> dict[str, str]:
    """What a variant of a program leaves out: all but ``workloads``."""
    reason = f"a variant, measured in {', '.join(workloads)} only"
    return {name: reason for name in WORKLOADS if name not in workloads}


def contenders() -> dict[str, Contender]:
    """All there are, by name; Kvasir first, then the peers."""
    found = [_kvasir("bf16", 16), _kvasir("int8", 8), *_llama_cpp(), *_openvino(), *_transformers()]
    return {contender.name: contender for contender in found}


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def _kvasir(kv: str, kv_bits: int) -> Contender:
    return Contender(
        name=f"kvasir {kv} KV",
        program=KVASIR,
        module=f"{ADAPTERS}.kvasir_server",
        python=Path(sys.executable),
        executable=Path(sys.executable).with_name("kvasir"),
        model=model_file("demo"),
        kv=kv,
        kv_bits=kv_bits,
        weights="int8",
        options={"flags": ["--kv-cache-memory", POOL]},
    )


def _llama_cpp() -> list[Contender]:
    def make(weights: str, kv: str, leaves_out: dict[str, str], flags: dict[str, int], says: str = "") -> Contender:
        return Contender(
            name=f"llama.cpp {weights} {kv} KV{says}",
            program="llama.cpp",
            module=f"{ADAPTERS}.llama_server",
            python=Path(sys.executable),
            executable=llama_server(),
            model=model_file(f"smollm2-{weights}.gguf"),
            kv=kv,
            kv_bits=8 if kv == "q8_0" else 16,
            weights=weights,
            options={"flags": flags},
            leaves_out=leaves_out,
            once=_LLAMA_ONCE,
        )

    one_thread = {"--threads": 1, "--threads-batch": usable_cores()}
    return [
        make("q8_0", "f16", {}, {}),
        make("q8_0", "f16", _only("W1"), one_thread, " 1 thread"),
        make("q4_1", "f16", _only("W1", "W2-4096", "W3"), {}),
        make("q8_0", "q8_0", _only("W1", "W2-4096"), {}),
    ]


def _openvino() -> list[Contender]:
    def make(weights: str, kv: str, kv_bits: int, leaves_out: dict[str, str]) -> Contender:
        return Contender(
            name=f"openvino {weights} {kv} KV",
            program="openvino-genai",
            module=f"{ADAPTERS}.openvino_pipeline",
            python=environment_python("openvino-genai"),
            executable=environment_python("openvino-genai"),
            model=model_file(f"smollm2-{weights}.gguf"),
            kv=kv,
            kv_bits=kv_bits,
            weights=weights,
            options={"scheduler": {"cache_size": 2, "max_num_batched_tokens": 512}, "properties": {}},
            leaves_out=leaves_out,
        )

    only_u8: dict[str, str] = dict.fromkeys(("W4-off", "W5-off"), "measured with u8 KV only")
    return [
        make("q8_0", "u8", 8, {}),
        make("q8_0", "bf16", 16, only_u8),
        make("q4_1", "u8", 8, _only("W1", "W2-4096", "W3")),
    ]


def _transformers() -> list[Contender]:
    leaves_out = {"W4": _NO_PREFIX_CACHE, "W5": _NO_PREFIX_CACHE, "W6": "one request at a time takes minutes"}
    leaves_out |= {"W4-off": "minutes", "W5-off": "minutes", "W7": _NO_PREFIX_CACHE}
    once: dict[str, str] = dict.fromkeys(("W1", "W2-4096", "W2-7500", "W3"), _SLOW)
    return [
        Contender(
            name="transformers float32",
            program="transformers",
            module=f"{ADAPTERS}.transformers_generate",
            python=environment_python("transformers"),
            executable=environment_python("transformers"),
            model=model_file("demo"),
            kv="float32",
            kv_bits=32,
            weights="float32",
            options={"dtype": "float32"},
            leaves_out=leaves_out,
            once=once,
        )
    ]


def default_kv_bits(ours: Collection[int]) -> int:
    """Of the KV format that ``--kv-cache-dtype auto`` takes; of another if that one was not measured."""
    bits = 8 if auto_kv_dtype(KernelChoice.AUTO).k is KVDtype.INT8 else 16
    return bits if bits in ours else max(ours, default=bits)
