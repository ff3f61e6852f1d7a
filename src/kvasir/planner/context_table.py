"""Memory against compute at every context length: bytes, shares, traffic, floor times, FLOPs, dollars."""

from dataclasses import dataclass

from kvasir.planner.instance import Instance
from kvasir.planner.kv_groups import held_bytes
from kvasir.planner.request import PlanRequest
from kvasir.planner.speed import SpeedModel

CONTEXTS = tuple(1024 << i for i in range(11))
"""1k to 1M."""
BATCHES = (1, 8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """``batch`` sequences of ``context`` tokens on one instance; bytes are those of all its devices together.

    ``kv_share``: KV of what weights and KV take together.  ``read_bytes``: traffic of one decode step, of which
    ``kv_read_share`` is KV.  ``floor_s`` and ``expected_s``: time per token, without and with measured losses;
    ``is_memory_bound``: moving the bytes takes longer than doing the FLOPs.  ``fits`` says whether the pool holds
    them.  ``usd_per_million``: output tokens at that batch and context, None without a price.
    """

    context: int
    batch: int
    kv_bytes: int
    kv_share: float
    read_bytes: float
    kv_read_share: float
    flops_per_token: float
    floor_s: float
    expected_s: float
    is_memory_bound: bool
    fits: bool
    usd_per_million: float | None


def context_rows(request: PlanRequest, instance: Instance, speed: SpeedModel, batches: tuple[int, ...] = BATCHES):
    """One row for each context the model reaches, and the next above it, times each batch."""
    contexts = [c for c in CONTEXTS if c <= request.shape.max_context] or [request.shape.max_context]
    if contexts[-1] < request.shape.max_context <= CONTEXTS[-1]:
        contexts.append(request.shape.max_context)
    return tuple(_row(request, instance, speed, context, batch) for context in contexts for batch in batches)


def _row(request: PlanRequest, instance: Instance, speed: SpeedModel, context: int, batch: int) -> ContextRow:
    devices = instance.num_devices
    groups = instance.groups(request.shape)
    split = instance.form.tensor_parallel
    kv = batch * (held_bytes(groups, context, _window_slack(request)) * split + request.shape.state_bytes)
    weights = instance.budget.weight_bytes * (devices if split == devices else 1)
    work = speed.decode_work(batch, context)
    empty = speed.decode_work(batch, 0)
    floor = speed.floor.roofline
    step_s = speed.decode_step_s(batch, context)
    price = instance.card.price_per_hour_usd
    return ContextRow(
        context=context,
        batch=batch,
        kv_bytes=kv,
        kv_share=kv / (kv + weights),
        read_bytes=work.num_bytes * split,
        kv_read_share=1 - empty.num_bytes / work.num_bytes,
        flops_per_token=2 * request.shape.num_active_parameters + request.shape.attention_flops(context),
        floor_s=speed.floor.decode_step_s(batch, context),
        expected_s=step_s,
        is_memory_bound=floor.memory_s(work.num_bytes) >= floor.compute_s(work.num_flops),
        fits=instance.pool.num_sequences(context) >= batch,
        usd_per_million=None if price is None else price * devices / 3600 * step_s / batch * 1e6,
    )


def _window_slack(request: PlanRequest) -> int:
    """Tokens a step adds before old blocks of a window go."""
    return request.settings.max_num_batched_tokens or 1
