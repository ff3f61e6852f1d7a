"""What the int8 cache with integer attention costs: KL divergence per token from fp32 attention over fp32 KV."""

import argparse
import statistics
import sys
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.engine.config import KernelChoice, WeightDtype
from kvasir.kernels.select import make_kernels
from kvasir.kv.format_spec import KVDtype
from kvasir.models.config import load_config
from kvasir.models.decoder import Decoder
from kvasir.models.resolve import resolve_model
from kvasir.models.weights import load_weights
from weight_kl import Reader, parse_with_text, read_windows, text_parser

TARGET_KL, TARGET_TOP1 = 0.002, 0.975
MEASURED = "int8 K and V"
FLOOR = "fp32 K and V, other chunks"
FORMATS: dict[str, tuple[KVDtype, KVDtype]] = {
    MEASURED: (KVDtype.INT8, KVDtype.INT8),
    "int8 K, fp32 V": (KVDtype.INT8, KVDtype.FP32),
    "fp32 K, int8 V": (KVDtype.FP32, KVDtype.INT8),
    "bf16 K and V": (KVDtype.BF16, KVDtype.BF16),
    FLOOR: (KVDtype.FP32, KVDtype.FP32),
}


@dataclass
class Found:
    """Sums over the windows read so far: KL of each window, and tokens whose likeliest successor is the same."""

    kl_sums: list[float] = field(default_factory=list)
    num_agreeing: int = 0

    def add(self, kl: Tensor, is_same: Tensor) -> None:
        self.kl_sums[-1] += kl.sum().item()
        self.num_agreeing += int(is_same.sum())


@torch.inference_mode()
def compare(decoder: Decoder, window: Tensor, chunk: int, found: dict[str, Found]) -> None:
    """Add one text's divergences.  The reader of the floor takes each chunk in pieces: nothing else differs."""
    truth_reader = Reader(decoder, window)
    readers = {name: Reader(decoder, window, FORMATS[name]) for name in found}
    for sums in found.values():
        sums.kl_sums.append(0.0)
    for start in range(0, len(window), chunk):
        end = min(len(window), start + chunk)
        truth = torch.log_softmax(truth_reader.logits(start, end), dim=-1)
        weights, best = truth.exp(), truth.argmax(dim=-1)
        for name, reader in readers.items():
            step = 33 if name == FLOOR else chunk
            pieces = [reader.logits(at, min(end, at + step)) for at in range(start, end, step)]
            other = torch.log_softmax(torch.cat(pieces), dim=-1)
            found[name].add((weights * (truth - other)).sum(dim=-1, dtype=torch.float64), other.argmax(dim=-1) == best)


def main() -> int:
    parser = text_parser(__doc__, "int8_kv.json", windows=4, tokens=2048, chunk=256)
    parser.add_argument("--kernels", type=KernelChoice, default=KernelChoice.AUTO)
    arguments = parse_with_text(parser)
    folder = resolve_model(arguments.model).path
    config = load_config(folder)
    kernels = make_kernels(arguments.kernels, torch.get_num_threads())
    windows = read_windows(arguments, folder)
    results: dict[WeightDtype, dict[str, Found]] = {}
    for weight_dtype in (WeightDtype.FP32, WeightDtype.INT8):
        decoder = Decoder(
            config, load_weights(folder, config, weight_dtype, kernels=kernels), kernels, arguments.tokens
        )
        results[weight_dtype] = found = {name: Found() for name in FORMATS}
        for number, window in enumerate(windows, 1):
            compare(decoder, window, arguments.chunk, found)
            num_tokens = number * arguments.tokens
            shown = ", ".join(
                f"{name} {sum(sums.kl_sums) / num_tokens:.5f} ({sums.num_agreeing / num_tokens:.2%})"
                for name, sums in found.items()
            )
            print(f"{weight_dtype.value} weights, {number} of {arguments.windows} windows: {shown}", flush=True)
    write_results(arguments, kernels.name, results)
    return 0


def write_results(arguments: argparse.Namespace, kernels: str, results: dict[WeightDtype, dict[str, Found]]) -> None:
    options = " ".join(f"--{name} {getattr(arguments, name)}" for name in ("model", "windows", "tokens", "chunk"))
    command = f"KVASIR_DATA=<folder with {arguments.text.name}> python bench/int8_kv.py {options}"
    writer = ResultWriter(path=arguments.output, command=command)
    num_tokens = arguments.windows * arguments.tokens
    writer.measurements = {
        "text": arguments.text.name,
        "kernels": kernels,
        "unit": "nats per token, KL(fp32 attention over fp32 KV || this cache), the same weights on both sides",
        "note": "With int8 weights the least change makes other activation codes, which alone costs as much as the "
        "floor shows between two orders of summation; the bar is meant for fp32 weights.",
    }
    for weight_dtype, found in results.items():
        writer.measurements[f"{weight_dtype.value} weights"] = {
            name: {
                "kl": sum(sums.kl_sums) / num_tokens,
                "kl_by_window": [total / arguments.tokens for total in sums.kl_sums],
                "top1_agreement": sums.num_agreeing / num_tokens,
            }
            for name, sums in found.items()
        }
        sums, is_barred = found[MEASURED], weight_dtype is WeightDtype.FP32
        name = f"{MEASURED}, {weight_dtype.value} weights"
        kl = statistics.fmean(total / arguments.tokens for total in sums.kl_sums)
        target = TARGET_KL if is_barred else None
        writer.claim(f"KL per token, {name}", kl, "nats", better=Better.LOWER, target=target)
        top1 = sums.num_agreeing / num_tokens
        writer.claim(
            f"same likeliest token, {name}",
            top1,
            "of 1",
            better=Better.HIGHER,
            target=TARGET_TOP1 if is_barred else None,
        )
    print(f"written: {writer.write()}")


if __name__ == "__main__":
    sys.exit(main())
