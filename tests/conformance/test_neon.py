"""The NEON build, cross-compiled and run under an emulator; skipped where the two are missing."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from head_constants import fitting
from paged_scenes import Setup, random_product
from test_attention import RAGGED, attend_bound, make_step
from test_rows import assert_rows_agree

from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.cpu.views import DTYPE_CODES
from kvasir.kernels.interface import Product, Rows, RowStyle
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import windowed

COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
SOURCES = Path(__file__).parents[2] / "src" / "kvasir" / "kernels" / "cpu" / "csrc"
ROW_LENGTH = 192

pytestmark = pytest.mark.skipif(not (COMPILER and EMULATOR), reason="needs an aarch64 cross compiler and emulator")


@pytest.fixture(scope="module", params=["neon", "neondot"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("neon") / "driver"
    sources = [
        Path(__file__).with_name("neon_driver.cpp"),
        *(SOURCES / f"{n}.cpp" for n in ("isa", "work_list", "pool")),
    ]
    options = ["-std=gnu++17", "-O1", "-ffp-contract=off", "-static", f"-DKVASIR_ISA={request.param}", f"-I{SOURCES}"]
    options += ["-march=armv8.2-a+dotprod"] if request.param == "neondot" else []
    subprocess.run([str(COMPILER), *options, *map(str, sources), "-o", str(program)], check=True, capture_output=True)
    return program


@pytest.mark.parametrize("dtype", list(KVDtype))
@pytest.mark.parametrize("rule", [{}, {"window": 24}, {"retention": windowed(sinks=4, window=40)}], ids=str)
def test_neon_agrees_with_the_reference(
    driver: Path, tmp_path: Path, reference: ReferenceKernels, dtype: KVDtype, rule: dict[str, Any]
) -> None:
    setup = Setup(k_dtype=dtype, v_dtype=dtype, head_dim=fitting(40, dtype), **rule)
    scene, plan, q = make_step(setup, CpuKernels(1), RAGGED[:8])
    num_tokens = len(q)
    gate_up = random_product(setup, num_tokens)[:, :1].repeat(1, 2 * ROW_LENGTH) * torch.linspace(-9, 9, 2 * ROW_LENGTH)
    num_rows, table_width = plan.block_table.shape
    sees = plan.retention
    header = [num_rows, num_tokens, table_width, setup.block_size, sees.window, sees.sinks, sees.block_size]
    header += [setup.num_heads, setup.num_kv_heads]
    header += [setup.head_dim, len(scene.kv.k[0]), DTYPE_CODES[dtype], ROW_LENGTH, scene.kv.k[0].nbytes]
    parts = [torch.tensor(header), plan.query_start, plan.first_position, plan.block_table, q, scene.kv.k[0]]
    constants = scene.kv.constants
    product = random_product(setup, num_tokens)
    parts += [scene.kv.v[0], gate_up, constants.k_center, constants.k_sink, constants.k_feedback, constants.v_sink]
    parts += [constants.k_scale, constants.v_scale, plan.slots, product]
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.write_bytes(b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts))
    subprocess.run([str(EMULATOR), str(driver), str(inputs), str(outputs)], check=True)

    raw = torch.frombuffer(bytearray(outputs.read_bytes()), dtype=torch.uint8)
    store_bytes = scene.kv.k[0].nbytes
    sizes = [q.nbytes, num_tokens * ROW_LENGTH, num_tokens * 4, store_bytes, store_bytes]
    attended, codes, scale, *stores = raw.split(sizes)
    expected = torch.empty_like(q)
    reference.attend(q, scene.kv, plan, 0.125, expected)
    error = (attended.view(torch.float32).view_as(q) - expected).abs().max()
    assert error <= attend_bound(dtype, dtype) * expected.abs().max()
    got = Rows(codes.view(torch.int8).view(num_tokens, ROW_LENGTH), scale.view(torch.float32))
    assert_rows_agree("swiglu_rows", got, reference.swiglu_rows(Product(gate_up), RowStyle(True, 64)))

    for tensor in (*scene.kv.k, *scene.kv.v):
        tensor.zero_()
    still = (torch.ones(num_tokens, setup.head_dim // 2), torch.zeros(num_tokens, setup.head_dim // 2))
    reference.qkv_write(Product(product), setup.shape, None, still, [(scene.kv, plan)])
    for written, tensor in zip(stores, (*scene.kv.k, *scene.kv.v), strict=True):
        assert (written == tensor.view(torch.uint8).flatten()).float().mean() >= 1 - 1e-4
