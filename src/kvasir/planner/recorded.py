"""Start-ups that others logged, as rows of facts: each becomes a model, a log and settings, and is predicted again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.planner.engines import EngineName
from kvasir.planner.kv_groups import StoreFormat, find_dtype
from kvasir.planner.llama_cpp_pool import llama_cpp_view
from kvasir.planner.log_check import Comparison, LoggedSettings, compare
from kvasir.planner.model_shape import LayerCache, LayerShape, ModelShape
from kvasir.planner.sources import find_model_card
from kvasir.planner.startup_log import GIB, MIB, LoggedBuffer, StartLog

_DEVIATION_ALLOWED = 0.012
"""Rows that are known to deviate do so by at most this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What became of one row.  ``is_stated``: the source names the model, it was not picked to fit the numbers."""

    row_id: str
    engine: EngineName
    is_stated: bool
    comparisons: tuple[Comparison, ...]

    @property
    def has_size(self) -> bool:
        """Whether the row gives KV bytes and what they hold (some give the swap pool only)."""
        return any(comparison.name in ("tokens", "cells") for comparison in self.comparisons)

    @property
    def is_exact(self) -> bool:
        return bool(self.comparisons) and all(comparison.is_exact for comparison in self.comparisons)

    @property
    def worst_deviation(self) -> float:
        return max((abs(c.deviation) for c in self.comparisons if not c.is_exact), default=0.0)

    @property
    def is_tolerable(self) -> bool:
        return self.worst_deviation <= _DEVIATION_ALLOWED


def read_rows(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def reproduce(row: Mapping[str, Any]) -> Reproduction:
    shape = _shape(row)
    return Reproduction(
        row_id=row["id"],
        engine=EngineName(row["engine"]),
        is_stated=row["evidence"] == "stated",
        comparisons=compare(shape, _log(row), _settings(row)),
    )


def _shape(row: Mapping[str, Any]) -> ModelShape:
    """The built-in card, or the bare store that the row describes."""
    if "model" in row:
        card = find_model_card(row["model"])
        if card is None:
            raise ModelError(f"Row {row['id']} names the model {row['model']}, which is not built in.")
        return card
    store = row["store"]
    cache = LayerCache(
        num_kv_heads=store["num_kv_heads"], k_dim=store["k_dim"], v_dim=store["v_dim"], is_latent=not store["v_dim"]
    )
    return ModelShape(
        name=row["id"],
        architecture="store only",
        source="recorded row",
        hidden_size=1,
        vocab_size=1,
        num_heads=store["num_kv_heads"],
        max_context=row.get("at_len", 1),
        layers=(LayerShape(caches=(cache,)),) * store["num_layers"],
        embedding_parameters=0,
        head_parameters=0,
        weight_format="bf16",
    )


def _log(row: Mapping[str, Any]) -> StartLog:
    is_llama = row["engine"] == EngineName.LLAMA_CPP.value
    return StartLog(
        engine=EngineName(row["engine"]),
        version=row["version"],
        kv_bytes=round(row["kv_gib"] * GIB) if "kv_gib" in row else None,
        rounding_bytes=_rounding_bytes(row),
        num_tokens=row.get("tokens"),
        num_blocks=row.get("blocks"),
        num_cpu_blocks=row.get("cpu_blocks"),
        max_concurrency=row.get("concurrency"),
        max_model_len=row.get("at_len"),
        buffers=(_buffer(row),) if is_llama else (),
    )


def _rounding_bytes(row: Mapping[str, Any]) -> int:
    """Half of the last digit; SGLang prints K and V apart and rounds both."""
    return round((0.01 if row["engine"] == EngineName.SGLANG.value else 0.005) * GIB) + 1


def _buffer(row: Mapping[str, Any]) -> LoggedBuffer:
    is_sliding = row["part"] == "sliding"
    caches = [c for c in llama_cpp_view(_shape(row)).held_caches() if (c.window is not None) == is_sliding]
    return LoggedBuffer(
        is_sliding=is_sliding,
        num_bytes=round(row["kv_mib"] * MIB),
        num_cells=row["cells"],
        num_layers=len(caches),
        num_sequences=row["parallel"],
    )


def _settings(row: Mapping[str, Any]) -> LoggedSettings:
    dtype = find_dtype(row["kv_dtype"])
    return LoggedSettings(
        form=StoreFormat(k_dtype=dtype, v_dtype=dtype, block_size=row["block_size"], tensor_parallel=row["tp"]),
        max_num_batched_tokens=row.get("batched_tokens", 8192),
        draft_layers=row.get("draft_layers", 0),
        swap_bytes=round(row.get("swap_gib", 4) * GIB),
        parallel=row.get("parallel", 1),
        context=row.get("context"),
    )
