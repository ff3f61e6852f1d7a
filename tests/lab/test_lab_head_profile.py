"""``--head-profile`` from the flag to the pool, on the model whose retrieval head was set by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from lab_models import RETRIEVAL_HEAD

from kvasir.compression.profile import HeadProfile
from kvasir.compression.profile_file import load_profile, save_profile
from kvasir.core.errors import ConfigError
from kvasir.engine.flags import effective_flags, make_engine_config
from kvasir.engine.llm import LLM
from kvasir.engine.pool_plan import make_layout
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup
from kvasir.kv.retention import FULL, windowed
from kvasir.lab.lab import Lab
from kvasir.lab.measures.copy_gap import CopyGap
from kvasir.lab.opening import LabPlan, open_lab
from kvasir.lab.setting import parse_setting
from kvasir.models.config import load_config
from kvasir.models.digest import model_digest

SMALL = {"max_model_len": 1024, "kv_cache_memory": "64MiB", "threads": 1}


@pytest.fixture(scope="module")
def profile_file(induction_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The retrieval head keeps everything, the other three a window of 128."""
    heads = [(layer, head) for layer in range(2) for head in range(2)]
    config = load_config(induction_model)
    profile = HeadProfile(
        model_name="induction",
        model_digest=model_digest(induction_model),
        num_layers=2,
        num_kv_heads=2,
        head_dim=config.head_dim,
        groups=(
            HeadGroup(heads=(RETRIEVAL_HEAD,), retention=FULL, k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8),
            HeadGroup(
                heads=tuple(head for head in heads if head != RETRIEVAL_HEAD),
                retention=windowed(sinks=4, window=128),
                k_dtype=KVDtype.INT8,
                v_dtype=KVDtype.INT8,
            ),
        ),
        recipe={},
        scores={},
    )
    path = tmp_path_factory.mktemp("profiles") / "induction.json"
    save_profile(profile, path, None)
    return path


def test_the_pool_has_the_profiles_groups(induction_model: Path, profile_file: Path) -> None:
    with LLM(model=str(induction_model), head_profile=str(profile_file), **SMALL) as llm:
        whole, narrow = llm.engine.layout.groups
        assert effective_flags(llm.engine.config)["head_profile"] == str(profile_file)
    assert whole.heads_by_layer == ((), (0,))
    assert whole.retention == FULL
    assert narrow.heads_by_layer == ((0, 1), (1,))
    assert narrow.retention == windowed(sinks=16, window=128).rounded(16)
    assert {whole.k_dtype, whole.v_dtype, narrow.k_dtype, narrow.v_dtype} == {KVDtype.INT8}


def test_another_models_profile_is_refused(induction_model: Path, profile_file: Path, tmp_path: Path) -> None:
    other = replace(load_profile(str(profile_file)), model_digest="0" * 64)
    save_profile(other, tmp_path / "other.json", None)
    with pytest.raises(ConfigError, match=r"was made for induction \(000000000000\), not for this model"):
        LLM(model=str(induction_model), head_profile=str(tmp_path / "other.json"), **SMALL)
    with pytest.raises(ConfigError, match="30 layers of 3 KV heads with 64 channels, but this model has 2 of 2"):
        LLM(model=str(induction_model), head_profile="default", **SMALL)


@pytest.mark.parametrize(
    ("flags", "option"),
    [({"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8"), ({"kv_retention": "window:window=64"}, "--kv-retention")],
)
def test_who_else_decides_is_named(
    induction_model: Path, profile_file: Path, flags: dict[str, str], option: str
) -> None:
    config = make_engine_config(model=str(induction_model), head_profile=str(profile_file), **flags)
    with pytest.raises(ConfigError, match=f"so does {option}.*leave one of them out"):
        make_layout(load_config(induction_model), config.cache)


def test_the_shipped_profile_is_the_embedded_models(demo_model: Path) -> None:
    """A quarter and a bit of its heads in full, the others under a window: a fifth of 16 bits at 8,192 tokens."""
    profile = load_profile("default")
    profile.check_model(model_digest(demo_model))
    layout = make_layout(load_config(demo_model), make_engine_config(head_profile="default").cache)
    assert sum(spec.num_pairs for spec in layout.groups) == 90
    sixteen = make_layout(load_config(demo_model), make_engine_config(kv_cache_dtype="bf16").cache)
    share = sum(spec.pool_bytes(spec.max_blocks(8192, 1)) for spec in layout.groups) / (
        sixteen.groups[0].pool_bytes(sixteen.groups[0].max_blocks(8192, 1))
    )
    assert share == pytest.approx(profile.recipe["share_of_bf16"], abs=1e-6)
    assert share <= 0.20


@pytest.fixture(scope="module")
def lab(induction_model: Path, profile_file: Path) -> Lab:
    plan = LabPlan(
        settings=(parse_setting(f"chosen=head_profile:{profile_file}"),),
        shared={"model": str(induction_model), "weight_dtype": "fp32", "max_model_len": "1024", "threads": "1"},
    )
    return open_lab(plan)


def test_the_lab_brings_its_controls(lab: Lab) -> None:
    """Beside a profile stand as many heads by lot, and one window for all heads, at no more bytes."""
    assert [subject.name for subject in lab.settings] == ["chosen", "chosen, heads by lot", "chosen, one window"]
    chosen, by_lot, one_window = (subject.engine.layout for subject in lab.settings)  # type: ignore[union-attr]
    assert [spec.num_pairs for spec in by_lot.groups] == [spec.num_pairs for spec in chosen.groups]
    assert by_lot.groups[0].heads_by_layer != chosen.groups[0].heads_by_layer
    assert len(one_window.groups) == 1

    def num_bytes(layout) -> int:
        return sum(spec.pool_bytes(spec.max_blocks(1024, 1)) for spec in layout.groups)

    assert num_bytes(one_window) <= num_bytes(chosen) == num_bytes(by_lot)


def test_the_right_head_copies_and_the_controls_do_not(lab: Lab) -> None:
    result = lab.run(CopyGap(distances=(600,), num_seeds=2, block_tokens=32))
    gap = {name: figures.tasks["random, 600 tokens apart"]["gap"].value for name, figures in result.settings.items()}
    assert abs(gap["chosen"]) < 0.05
    assert gap["chosen, heads by lot"] > 1.0
    assert gap["chosen, one window"] > 1.0
