"""Reads what engines print when they start: vLLM, SGLang, llama.cpp and Kvasir; numbers with the unit they mean."""

import re
from dataclasses import dataclass, field

from kvasir.core.errors import ConfigError
from kvasir.engine.byte_size import parse_bytes
from kvasir.planner.engines import EngineName

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBuffer:
    """One KV cache of llama.cpp; ``is_sliding`` is the one for layers with a window."""

    is_sliding: bool
    num_bytes: int
    num_cells: int
    num_layers: int
    num_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartLog:
    """What a start-up log says, per device; None where it does not.

    ``rounding_bytes`` is half the last printed digit of ``kv_bytes``.  ``version`` as logged, '' when it is not.
    """

    engine: EngineName
    version: str = ""
    total_bytes: int | None = None
    utilization: float | None = None
    weights_bytes: int | None = None
    non_torch_bytes: int | None = None
    activation_bytes: int | None = None
    graph_bytes: int | None = None
    kv_bytes: int | None = None
    rounding_bytes: int = 0
    num_tokens: int | None = None
    num_blocks: int | None = None
    num_cpu_blocks: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    buffers: tuple[LoggedBuffer, ...] = field(default=())

    @property
    def overhead_bytes(self) -> int | None:
        """What is neither weights nor KV within the budget, when the log says enough."""
        if self.non_torch_bytes is not None and self.activation_bytes is not None:
            return self.non_torch_bytes + self.activation_bytes
        known = (self.total_bytes, self.utilization, self.weights_bytes, self.kv_bytes)
        if any(value is None for value in known):
            return None
        total, share, weights, kv = known
        assert total is not None and share is not None and weights is not None and kv is not None
        return int(total * share) - weights - kv


def read_startup_log(text: str) -> StartLog:
    """The log of one engine; of several devices the one with the least KV counts.  Raises ``ConfigError`` when no line
    is one of the engines'."""
    for reader in (_read_vllm, _read_sglang, _read_llama_cpp, _read_kvasir):
        found = reader(text)
        if found is not None:
            return found
    raise ConfigError(
        "The log has no line by which vLLM, SGLang, llama.cpp or Kvasir say how large their KV cache is; "
        "give the start-up part of it."
    )


def _number(pattern: str, text: str, *, last: bool = False, least: bool = False) -> float | None:
    found = [float(match.replace(",", "")) for match in re.findall(pattern, text)]
    if not found:
        return None
    return min(found) if least else found[-1] if last else found[0]


def _gib(pattern: str, text: str, *, least: bool = False) -> int | None:
    value = _number(pattern, text, least=least)
    return None if value is None else round(value * GIB)


def _whole(pattern: str, text: str, *, least: bool = False) -> int | None:
    value = _number(pattern, text, least=least)
    return None if value is None else int(value)


_N = r"(-?[\d.]+)"
_COUNT = r"([\d,]+)"


def _read_vllm(text: str) -> StartLog | None:
    kv = _gib(rf"reserved for KV Cache is {_N}\s*GiB", text, least=True)
    if kv is None:
        kv = _gib(rf"Available KV cache memory: {_N} GiB", text, least=True)
    tokens = _whole(rf"GPU KV cache size: {_COUNT} tokens", text, least=True)
    blocks = _whole(rf"# (?:GPU|cuda|CUDA) blocks: {_COUNT}", text, least=True)
    if kv is None and tokens is None and blocks is None:
        return None
    weights = _gib(rf"model weights take {_N}\s*GiB", text)
    if weights is None:
        weights = _gib(rf"(?:Model loading took|Loading model weights took) {_N} G(?:i)?B", text)
    version = re.search(r"vLLM (?:API server version|.*?\(?v)\s*(\d+\.\d+[\w.]*)", text)
    return StartLog(
        engine=EngineName.VLLM,
        version=version[1] if version else "0.8 (V0)" if blocks is not None else "",
        total_bytes=_gib(rf"total_gpu_memory \({_N}\s*GiB\)", text),
        utilization=_number(rf"gpu_memory_utilization(?: \(|=|'?: ){_N}", text),
        weights_bytes=weights,
        non_torch_bytes=_gib(rf"non_torch_memory takes {_N}\s*GiB", text),
        activation_bytes=_gib(rf"PyTorch activation peak memory takes {_N}\s*GiB", text),
        graph_bytes=_gib(rf"Graph capturing finished in .*?took {_N} GiB", text),
        kv_bytes=kv,
        rounding_bytes=round(0.005 * GIB),
        num_tokens=tokens,
        num_blocks=blocks,
        num_cpu_blocks=_whole(rf"# CPU blocks: {_COUNT}", text),
        max_concurrency=_number(rf"Maximum concurrency for [\d,]+ tokens per request: {_N}x", text),
        max_model_len=_whole(rf"Maximum concurrency for {_COUNT} tokens per request", text),
    )


def _read_sglang(text: str) -> StartLog | None:
    tokens = _whole(rf"KV Cache is allocated\. #tokens: {_COUNT}", text, least=True)
    if tokens is None:
        tokens = _whole(rf"max_total_num_tokens={_COUNT}", text, least=True)
    if tokens is None:
        return None
    split = re.search(rf"#tokens: [\d,]+, K size: {_N} GB, V size: {_N} GB", text)
    whole = _gib(rf"#tokens: [\d,]+, KV size: {_N} GB", text)
    kv = round((float(split[1]) + float(split[2])) * GIB) if split else whole
    return StartLog(
        engine=EngineName.SGLANG,
        weights_bytes=_gib(rf"Load weight end\..*?mem usage={_N} GB", text),
        utilization=_number(rf"mem_fraction_static=({_N[1:-1]})", text),
        kv_bytes=kv,
        rounding_bytes=round((0.01 if split else 0.005) * GIB),
        num_tokens=tokens,
        max_model_len=_whole(rf"context_len={_COUNT}", text),
    )


_LLAMA_BUFFER = re.compile(
    r"creating (?P<kind>non-SWA|\s+SWA) KV cache"
    r"|size\s*=\s*(?P<size>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers,"
    r"\s*(?P<sequences>\d+)\s*(?:/\s*\d+)? seqs\)"
)


def _llama_buffers(text: str) -> tuple[LoggedBuffer, ...]:
    """A line says which cache comes next, another its size; models without windows have only the second."""
    buffers = []
    is_sliding = False
    for match in _LLAMA_BUFFER.finditer(text):
        if match["kind"]:
            is_sliding = match["kind"].strip() == "SWA"
            continue
        buffers.append(
            LoggedBuffer(
                is_sliding=is_sliding,
                num_bytes=round(float(match["size"]) * MIB),
                num_cells=int(match["cells"]),
                num_layers=int(match["layers"]),
                num_sequences=int(match["sequences"]),
            )
        )
    return tuple(buffers)


def _read_llama_cpp(text: str) -> StartLog | None:
    buffers = _llama_buffers(text)
    old = _number(r"KV self size\s*=\s*([\d.]+) MiB", text)
    if not buffers and old is None:
        return None
    kv = sum(buffer.num_bytes for buffer in buffers) if buffers else round((old or 0.0) * MIB)
    devices = [float(size) for size in re.findall(r"(?<!CPU) model buffer size\s*=\s*([\d.]+) MiB", text)]
    compute = [float(size) for size in re.findall(r"compute buffer size\s*=\s*([\d.]+) MiB", text)]
    return StartLog(
        engine=EngineName.LLAMA_CPP,
        weights_bytes=round(sum(devices) * MIB) if devices else None,
        activation_bytes=round(sum(compute) * MIB) if compute else None,
        non_torch_bytes=0 if compute else None,
        kv_bytes=kv,
        rounding_bytes=round(0.005 * MIB) * max(1, len(buffers)),
        num_tokens=_whole(r"n_ctx\s*=\s*(\d+)", text) or (max(b.num_cells for b in buffers) if buffers else None),
        max_model_len=_whole(r"n_ctx\s*=\s*(\d+)", text),
        buffers=buffers,
    )


_KVASIR = re.compile(
    r"KV cache: ([\d,+ ]+) blocks of (\d+) tokens = ([\d,]+) tokens = ([\d.]+) sequences of ([\d,]+) tokens, "
    r"([\d.]+ [KMGT]?i?B)"
)


def _read_kvasir(text: str) -> StartLog | None:
    match = _KVASIR.search(text)
    if match is None:
        return None
    unit = parse_bytes("1 " + match[6].split()[1])
    counts = [int(count.replace(",", "")) for count in match[1].split("+")]
    return StartLog(
        engine=EngineName.KVASIR,
        kv_bytes=parse_bytes(match[6]),
        rounding_bytes=round(0.05 * unit),
        num_tokens=int(match[3].replace(",", "")),
        num_blocks=counts[0] if len(counts) == 1 else None,
        max_concurrency=float(match[4]),
        max_model_len=int(match[5].replace(",", "")),
    )
