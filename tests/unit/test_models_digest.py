"""A model's name by content: equal for copies, different for every change that matters."""

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from weight_folders import TINY, random_weights, write_folder

from kvasir.engine.config import WeightDtype
from kvasir.models.config import ModelConfig, RopeKind
from kvasir.models.digest import computation_digest, model_digest
from kvasir.models.parameters import layer_name


def test_copies_are_equal_and_changes_are_not(tmp_path: Path) -> None:
    source = random_weights(TINY)
    write_folder(tmp_path / "a", TINY, source)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    digest = model_digest(tmp_path / "a")
    assert model_digest(tmp_path / "b") == digest
    assert len(digest) == 64

    tuned = dict(source)
    name = layer_name(1, "mlp.down_proj.weight")
    tuned[name] = source[name] + 0.001 * torch.randn(source[name].shape)
    write_folder(tmp_path / "tuned", TINY, tuned)
    write_folder(tmp_path / "longer", TINY | {"max_position_embeddings": 128}, source)
    swapped = source | {
        layer_name(0, "input_layernorm.weight"): source[layer_name(1, "input_layernorm.weight")],
        layer_name(1, "input_layernorm.weight"): source[layer_name(0, "input_layernorm.weight")],
    }
    write_folder(tmp_path / "swapped", TINY, swapped)
    others = {model_digest(tmp_path / folder) for folder in ("tuned", "longer", "swapped")}
    assert len(others | {digest}) == 4


def test_what_is_computed_differently_is_named_differently() -> None:
    config = ModelConfig.from_hf(TINY)
    dynamic = replace(config, rope=replace(config.rope, kind=RopeKind.DYNAMIC, factor=2.0))
    digests = [
        computation_digest("m", config, WeightDtype.INT8, 64, "cpu"),
        computation_digest("n", config, WeightDtype.INT8, 64, "cpu"),
        computation_digest("m", config, WeightDtype.FP32, 64, "cpu"),
        computation_digest("m", config, WeightDtype.INT8, 64, "reference"),
        computation_digest("m", dynamic, WeightDtype.INT8, 100, "cpu"),
        computation_digest("m", dynamic, WeightDtype.INT8, 101, "cpu"),
    ]
    assert len(set(digests)) == len(digests)
    assert computation_digest("m", config, WeightDtype.INT8, 100, "cpu") == digests[0]
    within = {computation_digest("m", dynamic, WeightDtype.INT8, length, "cpu") for length in (10, 64)}
    assert len(within) == 1
