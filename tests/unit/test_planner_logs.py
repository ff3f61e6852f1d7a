"""Start-up logs of four engines: what is read, in which unit, and what it is worth to a plan."""

import pytest

from kvasir.core.errors import ConfigError
from kvasir.planner.engines import EngineName
from kvasir.planner.kv_groups import StoreFormat, find_dtype
from kvasir.planner.log_check import LoggedSettings, compare
from kvasir.planner.overhead import RunShape, estimate, measured
from kvasir.planner.sources import find_model_card
from kvasir.planner.startup_log import read_startup_log

GIB, MIB = 1 << 30, 1 << 20
VLLM_V0 = """
INFO 07-02 17:08:01 [model_runner.py:1146] Model loading took 8.6253 GB and 7.670299 seconds
INFO 07-02 17:08:07 [worker.py:267] the current vLLM instance can use total_gpu_memory (79.15GiB) x gpu_memory_utilization (0.70) = 55.09GiB
INFO 07-02 17:08:07 [worker.py:267] model weights take 8.63GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.16GiB; the rest of the memory reserved for KV Cache is 45.21GiB.
INFO 07-02 17:08:07 [executor_base.py:111] # cuda blocks: 14815, # CPU blocks: 1966
INFO 07-02 17:08:07 [executor_base.py:116] Maximum concurrency for 512 tokens per request: 462.97x
INFO 07-02 17:09:11 [model_runner.py:1570] Graph capturing finished in 59 secs, took 1.12 GiB
"""  # noqa: E501
VLLM_V1 = """
(Worker_TP0 pid=1) INFO 03-14 09:12:55 [gpu_model_runner.py:1289] Model loading took 14.9888 GiB and 13.2 seconds
(Worker_TP0 pid=1) INFO 03-14 09:13:07 [gpu_worker.py:227] Available KV cache memory: 51.63 GiB
(Worker_TP1 pid=2) INFO 03-14 09:13:07 [gpu_worker.py:227] Available KV cache memory: 51.70 GiB
INFO 03-14 09:13:08 [kv_cache_utils.py:566] GPU KV cache size: 410,128 tokens
INFO 03-14 09:13:08 [kv_cache_utils.py:570] Maximum concurrency for 131,072 tokens per request: 3.13x
"""
SGLANG = """
[2025-03-08 12:29:21 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=6.09 GB, mem usage=15.54 GB.
[2025-03-08 12:29:21 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[2025-03-08 12:29:21 TP1] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[2025-03-08 12:29:27] max_total_num_tokens=46611, chunked_prefill_size=8192, context_len=32768
"""  # noqa: E501
LLAMA_CPP = """
load_tensors:        CUDA0 model buffer size = 60000.00 MiB
llama_context: n_ctx         = 65536
llama_kv_cache_iswa: creating non-SWA KV cache, size = 65536 cells
llama_kv_cache: size = 2304.00 MiB ( 65536 cells,  18 layers,  4/1 seqs), K (f16): 1152.00 MiB, V (f16): 1152.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
llama_kv_cache: size =   36.00 MiB (  1024 cells,  18 layers,  4/1 seqs), K (f16):   18.00 MiB, V (f16):   18.00 MiB
llama_context:      CUDA0 compute buffer size =   398.38 MiB
llama_context:  CUDA_Host compute buffer size =   134.01 MiB
"""
OLD_LLAMA_CPP = """
llama_kv_cache_init:      CUDA0 KV buffer size =   112.00 MiB
llama_new_context_with_model: KV self size  =  112.00 MiB, K (f16):   56.00 MiB, V (f16):   56.00 MiB
llama_new_context_with_model: n_ctx      = 1024
"""
KVASIR = "KV cache: 31,756 blocks of 16 tokens = 508,096 tokens = 62.0 sequences of 8,192 tokens, 10.9 GiB\n"


def card(name):
    shape = find_model_card(name)
    assert shape is not None
    return shape


def test_the_old_vllm():
    log = read_startup_log(VLLM_V0)
    assert log.engine is EngineName.VLLM
    assert (log.total_bytes, log.utilization) == (round(79.15 * GIB), 0.7)
    assert (log.weights_bytes, log.kv_bytes) == (round(8.63 * GIB), round(45.21 * GIB))
    assert (log.num_blocks, log.num_cpu_blocks, log.max_model_len) == (14815, 1966, 512)
    assert log.max_concurrency == 462.97
    assert log.graph_bytes == round(1.12 * GIB)
    assert log.overhead_bytes == round(0.09 * GIB) + round(1.16 * GIB)


def test_the_new_vllm_counts_by_its_fullest_device():
    log = read_startup_log(VLLM_V1)
    assert log.kv_bytes == round(51.63 * GIB)
    assert (log.num_tokens, log.max_model_len, log.max_concurrency) == (410_128, 131_072, 3.13)
    assert log.weights_bytes == round(14.9888 * GIB)
    assert log.overhead_bytes is None  # neither total nor activations are in it


def test_sglang():
    log = read_startup_log(SGLANG)
    assert (log.engine, log.num_tokens) == (EngineName.SGLANG, 46_611)
    assert log.kv_bytes == round(2.84 * GIB)
    assert log.weights_bytes == round(15.54 * GIB)
    assert log.max_model_len == 32_768
    form = StoreFormat(tensor_parallel=4)
    (tokens,) = compare(card("qwen2.5-32b"), log, LoggedSettings(form=form))
    assert tokens.is_exact


def test_llama_cpp_with_two_caches():
    log = read_startup_log(LLAMA_CPP)
    assert [(b.num_cells, b.num_layers, b.is_sliding) for b in log.buffers] == [(65_536, 18, False), (1024, 18, True)]
    assert log.kv_bytes == 2340 * MIB
    assert log.weights_bytes == 60_000 * MIB
    assert log.activation_bytes == round(532.39 * MIB)
    compared = compare(card("gpt-oss-120b"), log, LoggedSettings(form=StoreFormat(block_size=1)))
    assert len(compared) == 4 and all(entry.is_exact for entry in compared)


def test_llama_cpp_before_it_named_its_caches():
    log = read_startup_log(OLD_LLAMA_CPP)
    assert (log.kv_bytes, log.num_tokens) == (112 * MIB, 1024)


def test_our_own_line():
    log = read_startup_log(KVASIR)
    assert log.engine is EngineName.KVASIR
    assert (log.num_blocks, log.num_tokens, log.max_model_len, log.max_concurrency) == (31_756, 508_096, 8192, 62.0)
    assert abs((log.kv_bytes or 0) - 31_756 * 368_640) <= log.rounding_bytes


def test_our_own_line_is_the_one_serve_prints(capsys):
    from types import SimpleNamespace

    from kvasir.cli.serve import _show

    capacity = SimpleNamespace(
        num_blocks=(1200, 300), block_size=32, num_tokens=38_400, num_sequences=4.7, num_bytes=3 * GIB
    )
    info = SimpleNamespace(
        effective_config={}, capacity=capacity, max_model_len=8192, model_name="m", url="http://x", curl="curl"
    )
    _show(info)  # type: ignore[arg-type]
    log = read_startup_log(capsys.readouterr().out)
    assert (log.engine, log.num_tokens, log.max_model_len) == (EngineName.KVASIR, 38_400, 8192)
    assert log.kv_bytes == 3 * GIB


@pytest.mark.parametrize("text", ["", "INFO server started\n", "KV cache: none"])
def test_a_log_without_a_size_is_refused(text):
    with pytest.raises(ConfigError, match="no line by which"):
        read_startup_log(text)


def test_a_quantised_sliding_cache_is_recognised():
    text = """llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells
llama_kv_cache: size =   68.00 MiB (  8192 cells,   8 layers,  4/1 seqs), K (q8_0):   34.00 MiB, V (q8_0):   34.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 4608 cells
llama_kv_cache: size =  765.00 MiB (  4608 cells,  40 layers,  4/1 seqs), K (q8_0):  382.50 MiB, V (q8_0):  382.50 MiB
"""
    q8 = find_dtype("q8_0")
    settings = LoggedSettings(form=StoreFormat(k_dtype=q8, v_dtype=q8, block_size=1), context=8192)
    compared = compare(card("gemma-4-12b"), read_startup_log(text), settings)
    assert [entry.is_exact for entry in compared] == [True] * 4


@pytest.mark.parametrize(
    ("name", "batched", "logged_gib"),
    [
        ("qwen2.5-7b", 2048, 1.40),
        ("opt-125m", 2048, 0.49),
        ("llama-3.2-3b", 2048, 1.22),
        ("llama-3.1-8b", 20_000, 2.07),
        ("llama-3.1-8b", 29_000, 2.99),
        ("qwen2.5-1.5b", 32_768, 2.02),
    ],
)
def test_estimated_activations_are_near_the_logged_ones(name, batched, logged_gib):
    run = RunShape(max_num_batched_tokens=batched)
    framework = 0.1 * GIB
    found = estimate(card(name), EngineName.VLLM, "0.8 (V0)", run)
    assert (found.expected - framework) / GIB == pytest.approx(logged_gib, rel=0.08)
    assert found.low < logged_gib * GIB < found.high


def test_graphs_count_within_the_budget_from_0_21():
    old, new = (estimate(card("llama-3.1-8b"), EngineName.VLLM, v, RunShape()) for v in ("0.20", "0.21"))
    assert new.expected > old.expected
    assert "graphs" in new.source and "graphs" not in old.source


def test_a_measured_overhead_has_no_range():
    found = measured(read_startup_log(VLLM_V0))
    assert found is not None
    assert found.low == found.expected == found.high
    assert found.source.startswith("measured")
    assert measured(read_startup_log(VLLM_V1)) is None
