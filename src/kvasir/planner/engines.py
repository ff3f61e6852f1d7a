"""The engines that are planned for, and which arithmetic a version of vLLM has."""

import re
from enum import Enum

from kvasir.core.errors import ConfigError
from kvasir.planner.vllm_pool import VllmRule


class EngineName(Enum):
    KVASIR = "kvasir"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama.cpp"


DEFAULT_VERSIONS = {
    EngineName.KVASIR: "",
    EngineName.VLLM: "0.21",
    EngineName.SGLANG: "0.5",
    EngineName.LLAMA_CPP: "b6000",
}
"""The version whose rules are assumed when none is given: for vLLM the latest rule, for the others the only one."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def find_engine(name: str) -> EngineName:
    folded = name.lower().replace("-", "").replace("_", "").replace(".", "")
    for engine in EngineName:
        if folded == engine.value.replace(".", ""):
            return engine
    raise ConfigError(f"There is no engine {name!r}; known are {', '.join(engine.value for engine in EngineName)}.")


def vllm_rule(version: str) -> VllmRule:
    """The arithmetic of ``version``, such as '0.8.5' or '0.21'; a mark '(V0)' or '(V1)' decides between 0.8 and 0.11,
    when both were in the same release."""
    if "V0" in version:
        return VllmRule.V0
    match = _VERSION.search(version)
    if match is None:
        if "V1" in version:
            return VllmRule.V1
        raise ConfigError(f"{version!r} is not a version of vLLM; write for example 0.19.")
    release = int(match[1]), int(match[2])
    if release >= (0, 21):
        return VllmRule.V1_CONCURRENCY
    return VllmRule.V1 if release >= (0, 9) or "V1" in version else VllmRule.V0


def rule_sentence(engine: EngineName, version: str) -> str:
    """What the plan assumes of the engine, in one sentence."""
    if engine is EngineName.VLLM:
        return f"vLLM {version}: {_VLLM_RULES[vllm_rule(version)]}"
    return _RULES[engine]


_VLLM_RULES = {
    VllmRule.V0: "up to 0.8 (V0), every layer is given the full context and windows save nothing.",
    VllmRule.V1: "0.9 to 0.20 (V1), layers of different retention share equal pages; printed tokens are per group.",
    VllmRule.V1_CONCURRENCY: "from 0.21, printed tokens are concurrency times the context; steps are scheduled ahead.",
}
_RULES = {
    EngineName.KVASIR: "Kvasir: this very allocator, to the byte.",
    EngineName.SGLANG: "SGLang: token slots in what --mem-fraction-static leaves after loading; two pools for windows.",
    EngineName.LLAMA_CPP: "llama.cpp: -c cells in all, allocated at start; sliding layers window * -np + -ub cells.",
}
