"""A plan as tables of text: titles, columns (">" right-aligned) and rows; whoever prints them chooses how."""

from dataclasses import dataclass

from kvasir.engine.byte_size import format_bytes
from kvasir.hardware.card import MemoryBasis, PriceBasis
from kvasir.kv.retention import RetentionKind
from kvasir.kv.spec import BlockArithmetic
from kvasir.planner.context_table import ContextRow
from kvasir.planner.device_search import SEARCH_TPOT_S, DeviceSet
from kvasir.planner.engines import EngineName
from kvasir.planner.kv_groups import StoreSpec, bytes_per_token
from kvasir.planner.overhead import Range
from kvasir.planner.plan import Plan
from kvasir.planner.weight_formats import WEIGHT_FORMATS, weight_bytes

_NUM_DEVICES_SHOWN = 10
OTHER_FORMATS = ("bf16", "fp8", "int4", "q4_k_m")
"""Weight formats whose sizes are shown beside the planned one."""
_BASES = {
    MemoryBasis.LOG: "as a driver logged it",
    MemoryBasis.NOMINAL: "from the data sheet",
    MemoryBasis.MEASURED: "measured now",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def plan_tables(plan: Plan) -> tuple[TextTable, ...]:
    tables = [model_table(plan), memory_table(plan), capacity_table(plan)]
    tables += [context_table(plan, batch) for batch in _batches(plan)]
    if plan.sets:
        tables.append(devices_table(plan))
    return tuple(tables)


def _batches(plan: Plan) -> list[int]:
    return sorted({row.batch for row in plan.rows})[::2]


def model_table(plan: Plan) -> TextTable:
    shape, form = plan.request.shape, plan.chosen.instance.form
    groups = plan.chosen.instance.groups(shape)
    rows = [
        ("model", f"{shape.name}  ({shape.architecture}; {shape.source})"),
        ("parameters", _parameters(plan)),
        ("weights", f"{format_bytes(plan.request.weight_bytes)} in {plan.request.weights.name}"),
        ("in other formats", _other_weights(plan)),
        ("layers", _layers(plan)),
        ("context", f"{shape.max_context:,} tokens at most; planned for {plan.request.settings.max_model_len:,}"),
    ]
    for spec in groups:
        rows.append(_group(spec))
    whole = bytes_per_token(groups)
    shared = " (each device)" if form.tensor_parallel > 1 else ""
    rows.append(("KV per token", f"{format_bytes(round(whole))}{shared} in {_formats(plan)}"))
    if shape.state_bytes:
        rows.append(("state per sequence", f"{format_bytes(shape.state_bytes)}, however long it is"))
    return TextTable(title="Model", columns=(), rows=tuple(rows))


def _parameters(plan: Plan) -> str:
    total, active = plan.request.shape.num_parameters, plan.request.shape.num_active_parameters
    experts = f", {active / 1e9:.3g} billion work on a token" if active < 0.8 * total else ""
    return f"{total / 1e9:.4g} billion{experts}"


def _other_weights(plan: Plan) -> str:
    shape, now = plan.request.shape, plan.request.weights.name
    sizes = {name: weight_bytes(shape, WEIGHT_FORMATS[name]) for name in OTHER_FORMATS if name != now}
    return ", ".join(f"{format_bytes(size)} in {name}" for name, size in sizes.items())


def _layers(plan: Plan) -> str:
    shape = plan.request.shape
    held = sum(1 for layer in shape.layers if layer.held_caches)
    shared = sum(1 for layer in shape.layers if layer.shares_cache)
    recurrent = sum(1 for layer in shape.layers if layer.state)
    parts = [f"{shape.num_layers} in all", f"{held} hold KV"]
    parts += [f"{shared} share another's"] if shared else []
    parts += [f"{recurrent} keep a state"] if recurrent else []
    return ", ".join(parts)


def _group(spec: BlockArithmetic) -> tuple[str, str]:
    is_full = spec.retention.kind is RetentionKind.FULL
    kept = "all tokens" if is_full else f"the last {spec.retention.window:,} tokens"
    what = f"{spec.num_pairs} layers x heads"
    layers = ""
    if isinstance(spec, StoreSpec):
        heads = "a latent" if spec.is_latent else f"{spec.num_kv_heads} heads"
        dims = f"{spec.k_dim}" if not spec.v_dim or spec.v_dim == spec.k_dim else f"{spec.k_dim}+{spec.v_dim}"
        what, layers = f"{heads} of {dims}", f" of {spec.num_layers} layers"
    return f"KV{layers}", f"{what}, {format_bytes(round(spec.bytes_per_token))} a token, keeps {kept}"


def _formats(plan: Plan) -> str:
    k, v = plan.request.k_dtype.value, plan.request.v_dtype.value
    return k if k == v else f"{k} (K) and {v} (V)"


def memory_table(plan: Plan) -> TextTable:
    instance, budget = plan.chosen.instance, plan.chosen.instance.budget
    card = instance.card
    rows = [
        ("memory", format_bytes(budget.total_bytes), f"{_BASES[card.memory_basis]}; rates: {card.source}, {card.date}"),
        ("usable", format_bytes(budget.usable_bytes), _usable(plan)),
        ("weights", format_bytes(budget.weight_bytes), "of each device" if instance.num_devices > 1 else ""),
        ("overhead", format_bytes(budget.overhead.expected), _range(budget.overhead)),
        ("KV pool", format_bytes(instance.pool.num_bytes), _pool(plan)),
    ]
    title = f"Memory of each device: {instance.num_devices} x {card.name}, {_engine(plan)}"
    return TextTable(title=title, columns=("", ">bytes", ""), rows=tuple(rows))


def _engine(plan: Plan) -> str:
    settings = plan.request.settings
    return f"{settings.engine.value} {settings.effective_version}".strip()


def _usable(plan: Plan) -> str:
    settings = plan.request.settings
    if settings.engine is EngineName.KVASIR and plan.request.own is not None:
        return f"by --memory-utilization, at most what is available ({plan.request.own.limits.source})"
    return "by the engine's memory share"


def _range(overhead: Range) -> str:
    if overhead.low == overhead.high:
        return overhead.source
    return f"{format_bytes(overhead.low)} to {format_bytes(overhead.high)}; {overhead.source}"


def _pool(plan: Plan) -> str:
    instance = plan.chosen.instance
    pool, budget = instance.pool, instance.budget
    blocks = " + ".join(f"{count:,}" for count in pool.num_blocks)
    unit = {EngineName.SGLANG: "slots", EngineName.LLAMA_CPP: "cells"}.get(
        plan.request.settings.engine, f"blocks of {pool.block_size}"
    )
    parts = [f"{blocks} {unit}"]
    if pool.printed_tokens is not None:
        parts.append(f"printed as {pool.printed_tokens:,} tokens")
    if pool.printed_concurrency is not None:
        parts.append(f"{pool.printed_concurrency:.2f}x")
    if budget.kv_low != budget.kv_high:
        parts.append(f"range {format_bytes(max(0, budget.kv_low))} to {format_bytes(budget.kv_high)}")
    return ", ".join(parts)


def capacity_table(plan: Plan) -> TextTable:
    capacity, load = plan.chosen.capacity, plan.request.load
    context = plan.request.settings.max_model_len
    rows = [
        ("all at the full context", f"{capacity.worst_case:,.1f}", f"{context:,} tokens each"),
        ("contiguous allocation", f"{capacity.contiguous:,.1f}", "every sequence reserves the full context"),
        (
            "paged, at the stated lengths",
            f"{capacity.expected:,.1f}",
            f"prompts {load.prompts.text}, outputs {load.outputs.text}: {plan.sample.mean_held:,.0f} tokens held on "
            f"average, {capacity.paging_gain:.1f} times as many",
        ),
    ]
    if load.shared_prefix:
        rows.append(
            ("with the prefix shared", f"{capacity.shared:,.1f}", f"{load.shared_prefix:,} tokens are held once")
        )
    if plan.chosen.instance.pool_low is not plan.chosen.instance.pool:
        rows.append(("with the most overhead", f"{capacity.at_low:,.1f}", "the least that logs let one expect"))
    why = "exact or measured" if capacity.safety == 1 else "the overhead is an estimate; --from-log replaces it"
    rows.append(("to plan with", f"{capacity.planned:,}", f"safety factor {capacity.safety:g}: {why}"))
    speed = plan.chosen.throughput
    rows.append(
        (
            f"speed with {speed.batch} at once",
            f"{speed.tpot_s * 1000:,.1f} ms",
            f"a token each (floor {speed.floor_tpot_s * 1000:,.1f} ms); {speed.output_tokens_per_s:,.0f} output "
            f"tokens/s; first token after {speed.unloaded_ttft_s * 1000:,.0f} ms when unloaded",
        )
    )
    return TextTable(title="Sequences at once on one instance", columns=("", ">sequences", ""), rows=tuple(rows))


def context_table(plan: Plan, batch: int) -> TextTable:
    rows = tuple(_context_row(row) for row in plan.rows if row.batch == batch)
    title = f"Memory against compute, {batch} sequence{'s' if batch > 1 else ''} at once, one instance"
    columns = (
        *(">context", ">KV bytes", ">of memory", ">read a token", ">KV of reads", ">GFLOP a token"),
        *(">floor ms", ">expected ms", "bound by", ">$/M out", "fits"),
    )
    return TextTable(title=title, columns=columns, rows=rows)


def _context_row(row: ContextRow) -> tuple[str, ...]:
    return (
        f"{row.context:,}",
        format_bytes(row.kv_bytes),
        f"{100 * row.kv_share:.1f} %",
        format_bytes(round(row.read_bytes / row.batch)),
        f"{100 * row.kv_read_share:.1f} %",
        f"{row.flops_per_token / 1e9:,.1f}",
        f"{row.floor_s * 1000:,.2f}",
        f"{row.expected_s * 1000:,.1f}",
        "memory" if row.is_memory_bound else "compute",
        "-" if row.usd_per_million is None else f"{row.usd_per_million:,.2f}",
        "yes" if row.fits else "no",
    )


def devices_table(plan: Plan) -> TextTable:
    shown = plan.sets[:_NUM_DEVICES_SHOWN]
    slowest_s = plan.request.load.max_tpot_s or SEARCH_TPOT_S
    title = (
        f"Cheapest devices for {plan.request.load.users} users with {_engine(plan)}, "
        f"at most {slowest_s * 1000:g} ms a token"
    )
    columns = (
        *("devices", ">sequences", ">ms a token", ">floor", ">tokens/s", ">$/h"),
        *(">$/M out", ">$/M in", ">$/M blended", "price"),
    )
    return TextTable(title=title, columns=columns, rows=tuple(_device_row(found) for found in shown))


def _device_row(found: DeviceSet) -> tuple[str, ...]:
    instance, cost, speed = found.instance, found.cost, found.throughput
    replicas = f"{found.num_replicas} x " if found.num_replicas > 1 else ""
    return (
        f"{replicas}{instance.num_devices} x {instance.card.name}",
        f"{found.capacity.planned * found.num_replicas:,}",
        f"{speed.tpot_s * 1000:,.1f}",
        f"{speed.floor_tpot_s * 1000:,.1f}",
        f"{speed.output_tokens_per_s * found.num_replicas:,.0f}",
        "-" if found.per_hour_usd is None else f"{found.per_hour_usd:,.2f}",
        "-" if cost is None else f"{cost.output:,.2f}",
        "-" if cost is None else f"{cost.input_uncached:,.3f}",
        "-" if cost is None else f"{cost.blended:,.3f}",
        _PRICES[instance.card.price_basis],
    )


_PRICES = {
    PriceBasis.RENTED: "rented",
    PriceBasis.OWNED: "owned",
    PriceBasis.GIVEN: "given",
    PriceBasis.UNKNOWN: "unknown",
}
