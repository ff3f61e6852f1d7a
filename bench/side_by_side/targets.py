"""What Kvasir is held to: which figure of which workload, against the best peer of the same turns."""

from dataclasses import dataclass

from kvasir.claims.result_file import Better


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``kv_bits`` None: with the KV format that ``--kv-cache-dtype auto`` takes."""

    workload: str
    figure: str
    says: str
    better: Better
    ratio: float
    kv_bits: int | None = None


def _lower(workload: str, figure: str, says: str, ratio: float, kv_bits: int | None = None) -> Target:
    return Target(workload=workload, figure=figure, says=says, better=Better.LOWER, ratio=ratio, kv_bits=kv_bits)


def _higher(workload: str, figure: str, says: str, ratio: float, kv_bits: int | None = None) -> Target:
    return Target(workload=workload, figure=figure, says=says, better=Better.HIGHER, ratio=ratio, kv_bits=kv_bits)


TARGETS = (
    _lower("W1", "tpot_s", "one stream, 128 + 128: time per output token", 0.95),
    _lower("W1", "ttft_s", "one stream, 128 + 128: time to first token", 0.8),
    _lower("W2-4096", "ttft_s", "prompt of 4,096: time to first token", 0.55, 8),
    _lower("W2-4096", "ttft_s", "prompt of 4,096: time to first token", 0.9, 16),
    _lower("W2-7500", "ttft_s", "prompt of 7,500: time to first token", 0.4, 8),
    _lower("W2-7500", "ttft_s", "prompt of 7,500: time to first token", 0.8, 16),
    _lower("W2-4096", "tpot_s", "prompt of 4,096: time per output token", 0.7),
    _lower("W2-7500", "tpot_s", "prompt of 7,500: time per output token", 0.7),
    _higher("W3", "output_tokens_per_s", "16 x (512 + 128): output tokens/s", 1.5),
    _lower("W4", "ttft_later_s", "shared prefix of 2,000: mean time to first token of requests 2 to 16", 0.6),
    _lower("W5", "ttft_turn_15_s", "chat of 15 turns: time to first token of turn 15", 0.6),
    _higher("W6", "output_tokens_per_s", "32 mixed requests: output tokens/s", 1.5),
    _higher("W7", "decode_tokens_per_s", "8 x (4,096 + 64): decode tokens/s", 1.4, 16),
    _higher("W7", "decode_tokens_per_s", "8 x (4,096 + 64): decode tokens/s", 2.0, 8),
)
OWN_TURN_TARGET = 1.6
"""Turn 15 of a chat over turn 2, both ours."""
START_TARGET_S = 4.0
