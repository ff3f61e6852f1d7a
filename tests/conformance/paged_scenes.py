"""Paged scenes: sequences with known q, k, v, played through a kernel implementation in any chunking and placement."""

from dataclasses import dataclass, field
from math import isnan

import torch
from head_constants import made_up_constants
from torch import Tensor

from kvasir.formats.store import KVStore
from kvasir.kernels.interface import AttentionPlan, HeadShape, Kernels, LayerKV, Product
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import FULL, Retention


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One attention layer and its cache."""

    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    k_dtype: KVDtype = KVDtype.FP32
    v_dtype: KVDtype = KVDtype.FP32
    window: int | None = None
    block_size: int = 16
    retention: Retention = FULL

    @property
    def shape(self) -> HeadShape:
        return HeadShape(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def layout(self) -> KVLayout:
        geometry = KVGeometry(
            num_layers=1,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            sliding_windows=(self.window,),
        )
        return KVLayout.from_geometry(
            geometry,
            block_size=self.block_size,
            k_dtype=self.k_dtype,
            v_dtype=self.v_dtype,
            retention=self.retention,
        )


@dataclass
class Sequence:
    """The q/k/v products of a whole sequence, and how far it has been computed."""

    product: Tensor
    table: list[int] = field(default_factory=list)
    num_computed: int = 0
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def output(self) -> Tensor:
        return torch.cat(self.outputs)


class Scene:
    """A store and the sequences in it.  ``placement_seed`` shuffles which blocks they get."""

    def __init__(self, setup: Setup, num_blocks: int = 256, *, placement_seed: int = 0, fill: float = 0.0) -> None:
        self.setup = setup
        self.layout = setup.layout()
        self.store = KVStore(self.layout, (num_blocks,), made_up_constants(1, setup.num_kv_heads, setup.head_dim))
        self.kv: LayerKV = self.store.layers[0][0][1]
        for tensor in (*self.kv.k, *self.kv.v):
            if fill:
                tensor.fill_(fill if tensor.is_floating_point() else bad_byte(fill))
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(placement_seed))
        self.free = order.tolist()

    def plan(self, parts: list[tuple[Sequence, int]]) -> AttentionPlan:
        """The next ``count`` tokens of each sequence, in order; gives them the blocks they lack."""
        size = self.setup.block_size
        retention = self.layout.groups[0].retention
        starts, firsts, tables, slots = [0], [], [], []
        for sequence, count in parts:
            end = sequence.num_computed + count
            while len(sequence.table) * size < end:
                sequence.table.append(self.free.pop())
            dead = retention.dead_blocks(sequence.num_computed, size)
            starts.append(starts[-1] + count)
            firsts.append(sequence.num_computed)
            tables.append([-1 if i in dead else block for i, block in enumerate(sequence.table)])
            slots += [sequence.table[i // size] * size + i % size for i in range(sequence.num_computed, end)]
        longest = max(map(len, tables))
        return AttentionPlan(
            query_start=torch.tensor(starts, dtype=torch.int32),
            first_position=torch.tensor(firsts, dtype=torch.int32),
            block_table=torch.tensor([table + [-1] * (longest - len(table)) for table in tables], dtype=torch.int32),
            slots=torch.tensor(slots),
            block_size=size,
            retention=retention,
        )

    def step(self, kernels: Kernels, parts: list[tuple[Sequence, int]]) -> None:
        """Compute ``count`` more tokens of each sequence in one batch."""
        plan = self.plan(parts)
        rows = [sequence.product[sequence.num_computed :][:count] for sequence, count in parts]
        positions = torch.cat([torch.arange(s.num_computed, s.num_computed + count) for s, count in parts])
        q = kernels.qkv_write(
            Product(torch.cat(rows)), self.setup.shape, None, rope(positions, self.setup.head_dim), [(self.kv, plan)]
        )
        out = torch.full_like(q, float("nan"))
        kernels.attend(q, self.kv, plan, self.setup.scale, out)
        for (sequence, count), part in zip(parts, out.split([count for _, count in parts]), strict=True):
            sequence.outputs.append(part)
            sequence.num_computed += count


def bad_byte(fill: float) -> int:
    """Four of them are an fp32 scale: NaN, or the largest one there is, which makes infinities of what it touches."""
    return 0xFF if isnan(fill) else 0x7F


def rope(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    angles = positions[:, None].double() * 10000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    return angles.cos().float(), angles.sin().float()


def random_product(setup: Setup, num_tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, setup.width, generator=generator) * 1.5


def play(setup: Setup, kernels: Kernels, product: Tensor, chunk: int, **scene_options: object) -> Tensor:
    """The outputs of one sequence computed alone, ``chunk`` tokens a step."""
    scene = Scene(setup, **scene_options)  # type: ignore[arg-type]
    sequence = Sequence(product)
    while sequence.num_computed < len(product):
        scene.step(kernels, [(sequence, min(chunk, len(product) - sequence.num_computed))])
    return sequence.output
