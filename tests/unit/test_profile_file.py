"""Profile files: what is written is read back; what is damaged, foreign or newer is refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from kvasir.compression.constants import constants_from_bytes, constants_to_bytes, named_constants
from kvasir.compression.profile import HeadProfile
from kvasir.compression.profile_file import constants_bytes, load_profile, save_profile
from kvasir.core.errors import ConfigError
from kvasir.formats.constants import KVConstants
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup
from kvasir.kv.layout import KVGeometry
from kvasir.kv.retention import FULL, windowed

PROFILE = HeadProfile(
    model_name="tiny",
    model_digest="ab" * 32,
    num_layers=2,
    num_kv_heads=2,
    head_dim=64,
    groups=(
        HeadGroup(heads=((1, 0),), retention=FULL, k_dtype=KVDtype.INT8, v_dtype=KVDtype.BF16),
        HeadGroup(
            heads=((0, 0), (0, 1), (1, 1)),
            retention=windowed(sinks=4, window=100),
            k_dtype=KVDtype.INT8,
            v_dtype=KVDtype.INT8,
        ),
    ),
    recipe={"budget": 0.2, "text": "made-up prose"},
    scores={"induction": ((0.0, 0.25), (1.0, 1e-7))},
)
CONSTANTS = KVConstants(k_center=torch.arange(256.0).reshape(2, 2, 64), k_scale=torch.ones(2, 2))


def written(folder: Path) -> Path:
    path = folder / "tiny.json"
    save_profile(PROFILE, path, constants_to_bytes(CONSTANTS))
    return path


def test_round_trip(tmp_path: Path) -> None:
    path = written(tmp_path)
    profile = load_profile(str(path))
    assert profile.path == path
    assert profile.constants is not None
    assert profile == save_profile(PROFILE, path, constants_to_bytes(CONSTANTS))
    data = constants_bytes(profile)
    assert data is not None
    found, given = named_constants(constants_from_bytes(data)), named_constants(CONSTANTS)
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in given)


def test_the_same_profile_is_the_same_file(tmp_path: Path) -> None:
    first = written(tmp_path).read_bytes()
    assert written(tmp_path).read_bytes() == first


def test_without_constants(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / "bare.json", None)
    profile = load_profile(str(tmp_path / "bare.json"))
    assert profile == PROFILE
    assert constants_bytes(profile) is None


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        node: Any = data
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("format", value="another"), "is not a head profile"),
        (_set("version", value=2), "has version 2, and this Kvasir reads version 1"),
        (_set("model", "num_layers", value=0), "'num_layers' must be at least 1"),
        (_set("model", "num_layers", value=True), "'num_layers' must be of type int"),
        (_set("model", "digest", value=7), "'digest' must be of type str"),
        (_set("groups", value=[]), "it has no groups"),
        (_set("groups", 0, value="full"), "a group must be an object"),
        (_set("groups", 0, "heads", value=[[0]]), "pairs of whole numbers"),
        (_set("groups", 0, "heads", value=[[0, True]]), "pairs of whole numbers"),
        (_set("groups", 0, "heads", value=[[1, 0], [0, 0]]), "twice"),
        (_set("groups", 0, "heads", value=[[9, 0]]), "head 0 of layer 9"),
        (_set("groups", 0, "heads", value=[]), "leave out 1 of"),
        (_set("groups", 0, "k_dtype", value="int3"), "'k_dtype' of a group cannot be 'int3'"),
        (_set("groups", 1, "retention", value="window:sinks=4"), "'retention' of a group cannot be"),
        (_set("scores", "induction", value=[[1.0, 2.0]]), "must be 2 rows of 2 finite numbers"),
        (_set("scores", "induction", value=[[1.0, 2.0], [float("nan"), 0.0]]), "finite numbers"),
        (_set("constants", "file", value="../elsewhere.safetensors"), "profile's own folder"),
    ],
)
def test_a_damaged_profile_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], complaint: str) -> None:
    path = written(tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=complaint):
        load_profile(str(path))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": "kvasir head profile"'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"is damaged|is not a head profile"):
        load_profile(str(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_profile(str(tmp_path / "none.json"))


def test_other_constants_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    profile = load_profile(str(path))
    (tmp_path / "tiny.safetensors").write_bytes(constants_to_bytes(KVConstants(k_scale=torch.zeros(2, 2))))
    with pytest.raises(ConfigError, match="are not those of the head profile"):
        constants_bytes(profile)
    (tmp_path / "tiny.safetensors").unlink()
    with pytest.raises(ConfigError, match="keep both files together"):
        constants_bytes(profile)


def test_another_model_is_refused() -> None:
    PROFILE.check_model("ab" * 32)
    with pytest.raises(ConfigError, match=r"made for tiny \(abababababab\), not for this model \(cdcdcdcdcdcd\)"):
        PROFILE.check_model("cd" * 32)


def test_other_heads_are_refused() -> None:
    PROFILE.check_geometry(KVGeometry(num_layers=2, num_kv_heads=2, head_dim=64, sliding_windows=(None, None)))
    with pytest.raises(ConfigError, match="2 layers of 2 KV heads with 64 channels, but this model has 2 of 3 with 64"):
        PROFILE.check_geometry(KVGeometry(num_layers=2, num_kv_heads=3, head_dim=64, sliding_windows=(None, None)))


def test_constants_that_are_none_are_refused() -> None:
    for data in (b"", b"x" * 100, save({"k_other": torch.zeros(1)})):
        with pytest.raises(ConfigError, match="constants cannot be read"):
            constants_from_bytes(data)
