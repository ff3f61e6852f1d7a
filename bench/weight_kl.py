"""What integer weights cost: KL divergence per token from fp32 weights, on real text, with the cache in fp32."""

import argparse
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.engine.config import KernelChoice, WeightDtype
from kvasir.formats.store import KVStore
from kvasir.kernels.interface import AttentionPlan, Kernels
from kvasir.kernels.select import make_kernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.models.config import ModelConfig, load_config
from kvasir.models.decoder import Decoder
from kvasir.models.linear import MAX_ROTATION
from kvasir.models.resolve import resolve_model
from kvasir.models.weights import load_weights
from kvasir.text.tokenizer import Tokenizer

RESULTS = Path(__file__).parent / "results"
TEXT_NAME = "wiki.test.raw"
TARGET_KL = 0.006
BLOCK_SIZE = 16


@dataclass
class Variant:
    """Weights under test and what was found.  ``parts``: how many steps a chunk is computed in."""

    title: str
    decoder: Decoder
    parts: int = 1
    kl_sums: list[float] = field(default_factory=list)
    num_agreeing: int = 0

    def add(self, kl: Tensor, is_same: Tensor) -> None:
        self.kl_sums[-1] += kl.sum().item()
        self.num_agreeing += int(is_same.sum())


class Reader:
    """One text in one paged store, read from left to right.  ``kv``: the formats of K and V."""

    def __init__(
        self, decoder: Decoder, token_ids: Tensor, kv: tuple[KVDtype, KVDtype] = (KVDtype.FP32, KVDtype.FP32)
    ) -> None:
        self._decoder = decoder
        self._token_ids = token_ids
        geometry = decoder.config.geometry
        self._layout = KVLayout.from_geometry(geometry, block_size=BLOCK_SIZE, k_dtype=kv[0], v_dtype=kv[1])
        num_blocks = -(-len(token_ids) // BLOCK_SIZE)
        self._store = KVStore(self._layout, (num_blocks,) * len(self._layout.groups))
        self._table = torch.arange(num_blocks, dtype=torch.int32)[None]

    def logits(self, start: int, end: int) -> Tensor:
        """Logits [end - start, vocab_size] of tokens [start, end); everything before was read already."""
        positions = torch.arange(start, end)
        plans = tuple(
            AttentionPlan(
                query_start=torch.tensor([0, end - start], dtype=torch.int32),
                first_position=torch.tensor([start], dtype=torch.int32),
                block_table=self._table,
                slots=positions,
                block_size=BLOCK_SIZE,
                retention=spec.retention,
            )
            for spec in self._layout.groups
        )
        rows = torch.arange(end - start)
        return self._decoder.forward(self._token_ids[start:end], positions, self._store, plans, rows)


def make_variants(
    folder: Path, config: ModelConfig, kernels: Kernels, num_tokens: int
) -> tuple[Decoder, list[Variant]]:
    def decoder(weight_dtype: WeightDtype, max_rotation: int = MAX_ROTATION) -> Decoder:
        weights = load_weights(folder, config, weight_dtype, kernels=kernels, max_rotation=max_rotation)
        return Decoder(config, weights, kernels, num_tokens)

    reference = decoder(WeightDtype.FP32)
    variants = [
        Variant("int8 weights (rotated)", decoder(WeightDtype.INT8)),
        Variant("int8 weights, no rotation", decoder(WeightDtype.INT8, max_rotation=0)),
        Variant("bf16 weights", decoder(WeightDtype.BF16)),
        Variant("fp32 weights in other chunks (the floor)", reference, parts=9),
    ]
    return reference, variants


@torch.inference_mode()
def compare(reference: Decoder, variants: list[Variant], window: Tensor, chunk: int) -> None:
    """Add one text's divergences, chunk by chunk, so that no more than one chunk's logits are in memory."""
    truth_reader = Reader(reference, window)
    readers = [Reader(variant.decoder, window) for variant in variants]
    for variant in variants:
        variant.kl_sums.append(0.0)
    for start in range(0, len(window), chunk):
        end = min(len(window), start + chunk)
        truth = torch.log_softmax(truth_reader.logits(start, end), dim=-1)
        weights, best = truth.exp(), truth.argmax(dim=-1)
        for variant, reader in zip(variants, readers, strict=True):
            step = -(-(end - start) // variant.parts)
            pieces = [reader.logits(at, min(end, at + step)) for at in range(start, end, step)]
            other = torch.log_softmax(torch.cat(pieces), dim=-1)
            kl = (weights * (truth - other)).sum(dim=-1, dtype=torch.float64)
            variant.add(kl, other.argmax(dim=-1) == best)


def cut_windows(token_ids: list[int], num_windows: int, num_tokens: int) -> list[Tensor]:
    """``num_windows`` stretches of ``num_tokens``, spread evenly over the text."""
    if len(token_ids) < num_windows * num_tokens:
        raise SystemExit(f"the text has {len(token_ids)} tokens; {num_windows} x {num_tokens} are needed.")
    stride = (len(token_ids) - num_tokens) // max(1, num_windows - 1)
    return [torch.tensor(token_ids[i * stride : i * stride + num_tokens]) for i in range(num_windows)]


def text_parser(description: str | None, output: str, **defaults: int) -> argparse.ArgumentParser:
    """What measurements on windows of one text ask; ``defaults`` of windows, tokens and chunk."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--text", type=Path, help=f"default: {TEXT_NAME} in the folder that KVASIR_DATA names")
    parser.add_argument("--windows", type=int)
    parser.add_argument("--tokens", type=int, help="tokens a window")
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--output", type=Path, default=RESULTS / output)
    parser.set_defaults(**defaults)
    return parser


def parse_with_text(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, ``text`` filled in; ends with a usage error when there is none."""
    arguments = parser.parse_args()
    if arguments.text is None:
        if "KVASIR_DATA" not in os.environ:
            parser.error(f"give --text, or set KVASIR_DATA to a folder with {TEXT_NAME}.")
        arguments.text = Path(os.environ["KVASIR_DATA"]) / TEXT_NAME
    return arguments


def read_windows(arguments: argparse.Namespace, folder: Path) -> list[Tensor]:
    """The windows of the text, in tokens of the model in ``folder``."""
    text = arguments.text.read_text(encoding="utf-8")
    token_ids = Tokenizer.from_folder(folder).encode(text, add_special_tokens=False)
    return cut_windows(token_ids, arguments.windows, arguments.tokens)


def main() -> int:
    arguments = parse_with_text(text_parser(__doc__, "weight_kl.json", windows=8, tokens=1024, chunk=128))
    folder = resolve_model(arguments.model).path
    kernels = make_kernels(KernelChoice.AUTO, torch.get_num_threads())
    windows = read_windows(arguments, folder)
    reference, variants = make_variants(folder, load_config(folder), kernels, arguments.tokens)

    num_tokens = 0
    for number, window in enumerate(windows, 1):
        compare(reference, variants, window, arguments.chunk)
        num_tokens += len(window)
        shown = ", ".join(f"{variant.title}: {sum(variant.kl_sums) / num_tokens:.5f}" for variant in variants)
        print(f"window {number}: KL per token so far: {shown}", flush=True)

    write_results(arguments, kernels, variants)
    return 0


def write_results(arguments: argparse.Namespace, kernels: Kernels, variants: list[Variant]) -> None:
    options = " ".join(f"--{name} {getattr(arguments, name)}" for name in ("model", "windows", "tokens", "chunk"))
    command = f"KVASIR_DATA=<folder with {arguments.text.name}> python bench/weight_kl.py {options}"
    writer = ResultWriter(path=arguments.output, command=command)
    writer.measurements = {
        "text": arguments.text.name,
        "kernels": kernels.name,
        "unit": "nats per token, KL(fp32 weights || these weights), KV in fp32",
    }
    for variant in variants:
        per_window = [total / arguments.tokens for total in variant.kl_sums]
        writer.measurements[variant.title] = {
            "kl": statistics.fmean(per_window),
            "kl_by_window": per_window,
            "top1_agreement": variant.num_agreeing / (arguments.windows * arguments.tokens),
        }
        if variant.parts == 1:
            target = TARGET_KL if variant is variants[0] else None
            name = f"KL per token of {variant.title} from fp32 weights"
            writer.claim(name, statistics.fmean(per_window), "nats", better=Better.LOWER, target=target)
    print(f"written: {writer.write()}")


if __name__ == "__main__":
    sys.exit(main())
