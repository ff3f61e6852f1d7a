"""The promise about memory, on the embedded model: at its peak the process has weights + pool + 1 GiB at most."""

import json
import subprocess
import sys
from pathlib import Path

from kvasir.engine.memory import working_memory_bytes
from kvasir.models.config import load_config
from kvasir.scheduling.config import SchedulerConfig

GIB = 1 << 30


def _measure(folder: Path) -> dict[str, int]:
    """Load, fill the whole pool, sample with everything switched on; in a process of its own.

    The peak is the kernel's VmHWM: ``ru_maxrss`` of a child starts at what its parent had when it forked."""
    code = f"""
import json, re
from pathlib import Path
from kvasir import LLM, SamplingParams
with LLM({str(folder)!r}, kv_cache_memory="32MiB", max_model_len=1024) as llm:
    settings = SamplingParams(max_tokens=4, ignore_eos=True, top_p=0.95, repetition_penalty=1.1, logprobs=5)
    num_blocks = llm.engine.num_blocks[0]
    prompts = [[100 + 40 * i + j for j in range(60)] for i in range(num_blocks // 4)]
    outputs = llm.generate(prompts, settings)
    assert all(len(output.outputs[0].token_ids) == 4 for output in outputs)
    print(json.dumps({{
        "peak": int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10,
        "weights": llm.engine.weights_bytes,
        "pool": llm.engine.memory.pool_bytes,
    }}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_the_peak_is_weights_plus_pool_plus_a_gibibyte_at_most(demo_model):
    measured = _measure(demo_model)
    assert measured["pool"] > 31 << 20
    assert measured["peak"] <= measured["weights"] + measured["pool"] + GIB


def test_what_is_set_aside_for_work_stays_within_that_gibibyte(demo_model):
    model = load_config(demo_model)
    usual = working_memory_bytes(model, SchedulerConfig())
    assert 512 << 20 < usual < GIB
    more_tokens = SchedulerConfig(max_num_batched_tokens=4096)
    assert working_memory_bytes(model, more_tokens) - usual > 3584 * 4 * 3 * model.intermediate_size
