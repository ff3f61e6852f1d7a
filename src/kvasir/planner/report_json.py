"""A plan as JSON values: stable names, units in the names, bytes and seconds unrounded."""

from dataclasses import asdict
from typing import Any

from kvasir.hardware.card import DeviceCard
from kvasir.planner.device_search import DeviceSet
from kvasir.planner.instance import Budget
from kvasir.planner.kv_groups import bytes_per_token
from kvasir.planner.plan import Plan
from kvasir.planner.pool import Pool
from kvasir.planner.weight_formats import WEIGHT_FORMATS, weight_bytes


def plan_json(plan: Plan) -> dict[str, Any]:
    request, chosen = plan.request, plan.chosen
    return {
        "model": _model(plan),
        "assumptions": {
            "engine": request.settings.engine.value,
            "engine_version": request.settings.effective_version,
            "max_model_len": request.settings.max_model_len,
            "weight_format": request.weights.name,
            "k_dtype": request.k_dtype.value,
            "v_dtype": request.v_dtype.value,
            "users": request.load.users,
            "prompt_tokens": request.load.prompts.text,
            "output_tokens": request.load.outputs.text,
            "shared_prefix_tokens": request.load.shared_prefix,
            "hit_rate": request.load.hit_rate,
            "safety": chosen.capacity.safety,
            "step_constants": asdict(plan.speed.roofline.constants),
        },
        "chosen": _device_set(chosen),
        "lengths": {
            "mean_prompt": plan.sample.mean_prompt,
            "mean_output": plan.sample.mean_output,
            "mean_held": plan.sample.mean_held,
            "max_total": plan.sample.max_total,
        },
        "contexts": [asdict(row) for row in plan.rows],
        "device_sets": [_device_set(found) for found in plan.sets],
        "refused_devices": [{"device": refusal.card.name, "reason": refusal.reason} for refusal in plan.refusals],
        "commands": [
            {
                "engine": entry.engine.value,
                "command": entry.flags.command if entry.flags else None,
                "assumes": entry.flags.assumes if entry.flags else None,
                "reason": entry.reason or None,
            }
            for entry in plan.commands
        ],
        "warnings": [{"code": trap.value, "message": sentence} for trap, sentence in plan.traps],
        "notes": list(plan.notes),
        "log_comparisons": [
            {**asdict(comparison), "is_exact": comparison.is_exact} for comparison in plan.log_comparisons
        ],
    }


def _model(plan: Plan) -> dict[str, Any]:
    shape = plan.request.shape
    groups = plan.chosen.instance.groups(shape)
    return {
        "name": shape.name,
        "architecture": shape.architecture,
        "source": shape.source,
        "num_parameters": shape.num_parameters,
        "num_active_parameters": shape.num_active_parameters,
        "weight_bytes": plan.request.weight_bytes,
        "weight_bytes_by_format": {name: weight_bytes(shape, form) for name, form in WEIGHT_FORMATS.items()},
        "num_layers": shape.num_layers,
        "num_kv_layers": shape.num_kv_layers,
        "max_context": shape.max_context,
        "kv_bytes_per_token_per_device": bytes_per_token(groups),
        "state_bytes_per_sequence": shape.state_bytes,
        "groups": [
            {
                "num_layer_head_pairs": spec.num_pairs,
                "window": spec.retention.window or None,
                "bytes_per_token": spec.bytes_per_token,
                "block_size": spec.block_size,
                "block_bytes": spec.block_bytes,
            }
            for spec in groups
        ],
    }


def _device_set(found: DeviceSet) -> dict[str, Any]:
    instance = found.instance
    return {
        "device": _card(instance.card),
        "devices_per_instance": instance.num_devices,
        "num_replicas": found.num_replicas,
        "num_devices": found.num_devices,
        "per_hour_usd": found.per_hour_usd,
        "budget_per_device": _budget(instance.budget),
        "pool": _pool(instance.pool),
        "sequences": asdict(found.capacity),
        "throughput": asdict(found.throughput),
        "cost": None if found.cost is None else asdict(found.cost),
    }


def _card(card: DeviceCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "kind": card.kind.value,
        "memory_bytes": card.memory_bytes,
        "memory_basis": card.memory_basis.value,
        "bandwidth_bytes_per_s": card.bandwidth_bytes_per_s,
        "bf16_flops": card.bf16_flops,
        "price_per_hour_usd": card.price_per_hour_usd,
        "price_basis": card.price_basis.value,
        "source": card.source,
        "date": card.date,
    }


def _budget(budget: Budget) -> dict[str, Any]:
    return {
        "total_bytes": budget.total_bytes,
        "usable_bytes": budget.usable_bytes,
        "weight_bytes": budget.weight_bytes,
        "overhead_bytes": asdict(budget.overhead),
        "kv_bytes": {"low": budget.kv_low, "expected": budget.kv_expected, "high": budget.kv_high},
    }


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "num_bytes": pool.num_bytes,
        "block_size": pool.block_size,
        "num_blocks": list(pool.num_blocks),
        "printed_tokens": pool.printed_tokens,
        "printed_concurrency": pool.printed_concurrency,
        "max_sequences": pool.max_sequences,
    }
