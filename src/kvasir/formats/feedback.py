"""``k_feedback`` from what queries look like: how int4 spreads a key's rounding error so that scores lose least."""

import torch
from torch import Tensor

from kvasir.kernels.rotation import hadamard, rotation_size

_RIDGE = 1e-3
"""Share of the mean variance that is added to every direction: none counts as never looked at."""


def key_feedback(second_moment: Tensor) -> Tensor:
    """``second_moment`` [..., D, D]: sum (or mean) of q q^T after RoPE over the queries of a KV head.
    Returns fp32 [..., D, D], strictly lower triangular, in the rotated basis, as ``quantise_groups`` takes it.

    A key's error e costs queries E (q . e)^2 = e^T M e.  With M = L L^T (Cholesky) that is a sum over channels j of
    L_jj^2 times the square of e_j + sum over i > j of (L_ij / L_jj) e_i.  Coding channels from the last to the first
    and taking that sum off makes every square as small as one rounding.  (The same triangle as in GPTQ, Frantar et al.
    2022, where weights are rounded against the covariance of activations.)
    """
    size = second_moment.shape[-1]
    turn = torch.block_diag(*[hadamard(rotation_size(size))] * (size // rotation_size(size)))
    moment = turn @ second_moment.double() @ turn
    mean = moment.diagonal(dim1=-2, dim2=-1).mean(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
    lower = torch.linalg.cholesky(moment + _RIDGE * mean[..., None, None] * torch.eye(size, dtype=torch.float64))
    return (lower / lower.diagonal(dim1=-2, dim2=-1)[..., None, :]).tril(-1).float()
