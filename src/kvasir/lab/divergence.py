"""How far two sets of logits are apart, row by row, with an error far below what is measured."""

from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK_ROWS = 64
"""Rows taken at once: their logits and the few copies made of them stay near the cache."""
_LARGEST_DIFFERENCE = 40.0


@dataclass(slots=True)
class RowScores:
    """fp64 ``nll`` and ``kl`` [n], bool ``is_same_best`` [n]; see ``document.Scores``."""

    nll: Tensor
    kl: Tensor
    is_same_best: Tensor


@torch.inference_mode()
def negative_log_likelihoods(logits: Tensor, targets: Tensor) -> Tensor:
    """fp64 [n]: -ln p(targets[i]) under ``logits`` fp32 [n, vocab_size]."""
    blocks = zip(logits.split(_BLOCK_ROWS), targets.split(_BLOCK_ROWS), strict=True)
    parts = [_log_mass(rows) - _chosen(rows, ids) for rows, ids in blocks]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


@torch.inference_mode()
def compare_rows(reference: Tensor, other: Tensor, targets: Tensor) -> RowScores:
    """``other`` against ``reference``, both fp32 [n, vocab_size]; neither is changed.

    With d = other - reference and m = E_p[d] under the reference's distribution p,

        KL(p || q) = ln E_p[e^(d - m)]        ln Z_q = ln Z_p + m + KL(p || q)

    so what is summed shrinks with the difference itself: equal rows give exactly 0, and a KL of 1e-6 is not lost in the
    rounding of two log-softmaxes.
    """
    if torch.equal(reference, other):
        nll = negative_log_likelihoods(other, targets)
        return RowScores(nll, torch.zeros_like(nll), torch.ones(len(nll), dtype=torch.bool))
    blocks = zip(reference.split(_BLOCK_ROWS), other.split(_BLOCK_ROWS), targets.split(_BLOCK_ROWS), strict=True)
    parts = [_compare_block(theirs, ours, ids) for theirs, ours, ids in blocks]
    return RowScores(
        torch.cat([part.nll for part in parts]),
        torch.cat([part.kl for part in parts]),
        torch.cat([part.is_same_best for part in parts]),
    )


def _compare_block(theirs: Tensor, ours: Tensor, targets: Tensor) -> RowScores:
    log_mass = _log_mass(theirs)
    difference = ours - theirs
    is_same_best = ours.argmax(dim=1) == theirs.argmax(dim=1)
    if float(difference.abs().max()) > _LARGEST_DIFFERENCE:
        return RowScores(_log_mass(ours) - _chosen(ours, targets), _plain_kl(theirs, ours), is_same_best)
    weights = torch.exp(theirs - log_mass.float()[:, None])
    total = weights.sum(dim=1, dtype=torch.float64)
    mean = ((weights * difference).sum(dim=1, dtype=torch.float64) / total).float()
    difference.sub_(mean[:, None])
    # The mean was rounded to fp32 before it was taken off: what that left over is taken off here.
    left = (weights * difference).sum(dim=1, dtype=torch.float64) / total
    growth = torch.log1p((weights * torch.expm1(difference)).sum(dim=1, dtype=torch.float64) / total)
    nll = log_mass + mean.double() + growth - _chosen(ours, targets)
    return RowScores(nll, (growth - left).clamp(min=0.0), is_same_best)


def _plain_kl(theirs: Tensor, ours: Tensor) -> Tensor:
    """By the definition, in fp64: for rows so far apart that e^d would overflow, where rounding is no matter."""
    p, q = torch.log_softmax(theirs.double(), dim=1), torch.log_softmax(ours.double(), dim=1)
    return (p.exp() * (p - q)).sum(dim=1)


def _log_mass(rows: Tensor) -> Tensor:
    """ln of the sum of e^logit, fp64 [n]."""
    largest = rows.amax(dim=1)
    mass = torch.exp(rows - largest[:, None]).sum(dim=1, dtype=torch.float64)
    return largest.double() + torch.log(mass)


def _chosen(rows: Tensor, targets: Tensor) -> Tensor:
    return rows.gather(1, targets[:, None]).squeeze(1).double()
