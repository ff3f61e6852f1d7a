"""The one model in the forms that the programs read: the embedded GGUF, the same as Q8_0, and its folder."""

import shutil
import tempfile
from pathlib import Path

import gguf
import numpy
from gguf import quants

from kvasir.models.demo import demo_folder, fetch_demo_gguf
from side_by_side.places import MODELS, model_file


def prepare_models() -> list[Path]:
    """Whatever is not there yet; returns all of them."""
    MODELS.mkdir(parents=True, exist_ok=True)
    original, eight_bit, folder = model_file("smollm2-q4_1.gguf"), model_file("smollm2-q8_0.gguf"), model_file("demo")
    if not original.exists():
        with tempfile.TemporaryDirectory(dir=MODELS) as scratch:
            fetched = fetch_demo_gguf(Path(scratch), _silently)
            shutil.copyfile(fetched, original)
    if not eight_bit.exists():
        part = eight_bit.with_suffix(".part")
        write_as_q8_0(original, part)
        part.rename(eight_bit)
    if not folder.exists():
        folder.symlink_to(demo_folder(_silently), target_is_directory=True)
    return [original, eight_bit, folder]


def _silently(stage: str, fraction: float) -> None:
    """No progress shown."""


def write_as_q8_0(source: Path, target: Path) -> None:
    """Every Q4_1 tensor dequantised and written as Q8_0 (8 bits and one fp16 scale for 32 weights): what 8-bit files
    of these weights would hold; the other tensors and all fields as they are."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            _copy_field(writer, name, field)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind is gguf.GGMLQuantizationType.Q4_1:
            kind = gguf.GGMLQuantizationType.Q8_0
            data = quants.quantize(quants.dequantize(tensor.data, tensor.tensor_type), kind)
        writer.add_tensor(tensor.name, numpy.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_field(writer: gguf.GGUFWriter, name: str, field: gguf.ReaderField) -> None:
    kind = field.types[0]
    value = field.contents()
    if name == "general.file_type":
        value = int(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_key_value(name, value, kind, sub_type=field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None)
