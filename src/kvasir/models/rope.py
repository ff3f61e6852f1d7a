"""RoPE tables: cos and sin of every position, a function of the position alone."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kvasir.models.rope_config import RopeConfig, RopeKind


class RotaryTable:
    """cos and sin, each fp32 [max_positions, head_dim / 2], already multiplied by the attention factor.

    Frequencies and angles are rounded to fp32 where transformers rounds them: models were trained with those angles,
    and at position 8,000 an exact angle is a milliradian away from the trained one.  cos and sin of the rounded angle
    are taken in fp64.
    """

    def __init__(self, rope: RopeConfig, head_dim: int, max_positions: int) -> None:
        frequencies = inverse_frequencies(rope, head_dim, max_positions)
        angles = (torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies).double()
        self.cos = angles.cos().float() * rope.attention_factor
        self.sin = angles.sin().float() * rope.attention_factor

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``positions`` int64 [T] -> (cos, sin), each [T, head_dim / 2]; IndexError past the table's end."""
        return self.cos[positions], self.sin[positions]

    @property
    def num_bytes(self) -> int:
        return self.cos.nbytes + self.sin.nbytes


def inverse_frequencies(rope: RopeConfig, head_dim: int, max_model_len: int) -> Tensor:
    """Radians per position of each pair of channels, fp32 [head_dim / 2], fastest first.

    DYNAMIC: transformers takes the base from the length of the sequence so far, so that a position's key depends on
    how far the text had got when it was cached.  Our logits depend on the tokens before a position and on nothing
    else, so the base is fixed for the whole run: the one transformers uses for a sequence of exactly
    ``max_model_len`` tokens, which is the plain base while ``max_model_len`` is within the trained context.
    """
    return _FREQUENCIES[rope.kind](rope, head_dim, max_model_len)


def _plain(theta: float, head_dim: int) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))


def _default(rope: RopeConfig, head_dim: int, max_model_len: int) -> Tensor:
    return _plain(rope.theta, head_dim)


def _linear(rope: RopeConfig, head_dim: int, max_model_len: int) -> Tensor:
    return _plain(rope.theta, head_dim) / rope.factor


def _dynamic(rope: RopeConfig, head_dim: int, max_model_len: int) -> Tensor:
    length = max(max_model_len, rope.original_max_position)
    growth = rope.factor * length / rope.original_max_position - (rope.factor - 1.0)
    return _plain(rope.theta * growth ** (head_dim / (head_dim - 2)), head_dim)


def _llama3(rope: RopeConfig, head_dim: int, max_model_len: int) -> Tensor:
    plain = _plain(rope.theta, head_dim)
    turns = rope.original_max_position / (2.0 * math.pi / plain)  # rotations within the trained context
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1.0 - smooth) * plain / rope.factor + smooth * plain
    return torch.where(smooth <= 0.0, plain / rope.factor, torch.where(smooth >= 1.0, plain, blended))


def _yarn(rope: RopeConfig, head_dim: int, max_model_len: int) -> Tensor:
    """Channels that turn more than ``beta_fast`` times in the trained context keep their frequency, those below
    ``beta_slow`` are interpolated, with a linear ramp over the channels between (arXiv:2309.00071, section 3.2)."""

    def channel(num_turns: float) -> float:
        ratio = rope.original_max_position / (num_turns * 2.0 * math.pi)
        return head_dim * math.log(ratio) / (2.0 * math.log(rope.theta))

    first, last = channel(rope.beta_fast), channel(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)
    periods = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    extrapolated = 1.0 - ramp
    return 1.0 / (rope.factor * periods) * (1.0 - extrapolated) + 1.0 / periods * extrapolated


_FREQUENCIES: dict[RopeKind, Callable[[RopeConfig, int, int], Tensor]] = {
    RopeKind.DEFAULT: _default,
    RopeKind.LINEAR: _linear,
    RopeKind.LLAMA3: _llama3,
    RopeKind.YARN: _yarn,
    RopeKind.DYNAMIC: _dynamic,
}
