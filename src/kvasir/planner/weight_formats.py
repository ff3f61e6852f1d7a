"""What weights cost in each format: bits of an element with its scales, and which matrices are left alone."""

from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.planner.config_fields import ConfigFields
from kvasir.planner.model_shape import LayerParameters, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """``bits`` of one quantised element, scales and zero points included.  ``compute_bits`` is the width whose units
    multiply.  ``experts_only``: attention and dense matrices keep 16 bits.  ``quantises_head``: embedding and head
    too (at ``head_bits``)."""

    name: str
    bits: float
    compute_bits: int = 16
    experts_only: bool = False
    head_bits: float = 16.0


_FORMATS = (
    WeightFormat(name="fp32", bits=32, head_bits=32),
    WeightFormat(name="bf16", bits=16),
    WeightFormat(name="fp8", bits=8, compute_bits=8),
    WeightFormat(name="int8", bits=8 + 16 / 1024, compute_bits=8),
    WeightFormat(name="int4", bits=4 + (16 + 4) / 128),  # groups of 128: a 16-bit scale and a 4-bit zero point
    WeightFormat(name="nf4", bits=4 + 8 / 64 + 32 / (64 * 256)),  # blocks of 64, scales quantised in turn
    WeightFormat(name="mxfp4", bits=4 + 8 / 32, experts_only=True),
    WeightFormat(name="nvfp4", bits=4 + 8 / 16),
    WeightFormat(name="q8_0", bits=34 * 8 / 32, head_bits=34 * 8 / 32),
    WeightFormat(name="q6_k", bits=210 * 8 / 256, head_bits=210 * 8 / 256),
    WeightFormat(name="q5_k_m", bits=5.69, head_bits=210 * 8 / 256),
    WeightFormat(name="q4_k_m", bits=4.85, head_bits=210 * 8 / 256),
    WeightFormat(name="q4_0", bits=18 * 8 / 32, head_bits=210 * 8 / 256),
)
WEIGHT_FORMATS = {form.name: form for form in _FORMATS}
_SYNONYMS = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "float32": "fp32", "half": "bf16"}
_SYNONYMS |= {"awq": "int4", "gptq": "int4", "w4a16": "int4", "bnb4": "nf4", "w8a8": "int8", "fp4": "nvfp4"}
_METHODS = {
    **dict.fromkeys(("fp8", "fbgemm_fp8", "finegrained_fp8"), "fp8"),
    **dict.fromkeys(("awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round"), "int4"),
    **dict.fromkeys(("mxfp4",), "mxfp4"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4"), "nvfp4"),
}


def find_weight_format(name: str) -> WeightFormat:
    key = _SYNONYMS.get(name.lower(), name.lower())
    if key not in WEIGHT_FORMATS:
        raise ConfigError(f"There is no weight format {name!r}; known are {', '.join(WEIGHT_FORMATS)}.")
    return WEIGHT_FORMATS[key]


def config_weight_format(fields: ConfigFields) -> str:
    """The format the checkpoint is in, from its quantization_config and dtype."""
    part = fields.root.part("quantization_config") or fields.text.part("quantization_config")
    if part is None:
        dtype = str(fields.get("dtype") or fields.get("torch_dtype") or fields.root.get("torch_dtype") or "bfloat16")
        return _SYNONYMS.get(dtype.removeprefix("torch."), "bf16")
    method = str(part.get("quant_method") or part.get("quant_algo") or "").lower()
    bits = part.get("bits") or part.get("w_bit")
    if method in ("awq", "gptq") and bits == 8:
        return "int8"
    if method == "bitsandbytes":
        return "nf4" if part.get("load_in_4bit") else "int8"
    if method == "modelopt":
        return "nvfp4" if "FP4" in str(part.get("quant_algo")).upper() else "fp8"
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed(part.values)
    return _METHODS.get(method, "bf16")


def _compressed(values: dict[str, object]) -> str:
    form = str(values.get("format", ""))
    if "nvfp4" in form or "fp4" in form:
        return "nvfp4"
    if "pack" in form:
        return "int4"
    return "fp8" if "float" in form else "int8"


def weight_bytes(shape: ModelShape, form: WeightFormat) -> int:
    """Bytes of all weights in ``form``, exact where the format is and the parameters are."""
    bits = sum(_layer_bits(layer.parameters, form) for layer in shape.layers)
    outside = shape.embedding_parameters + shape.head_parameters
    return round((bits + outside * form.head_bits + shape.other_parameters * max(16.0, form.head_bits)) / 8)


def stored_or_reckoned_bytes(shape: ModelShape, form: WeightFormat) -> int:
    """The size of the files where they were seen in this very format, else reckoned."""
    if shape.stored_weight_bytes is not None and form.name == shape.weight_format:
        return shape.stored_weight_bytes
    return weight_bytes(shape, form)


def read_bytes_per_step(shape: ModelShape, form: WeightFormat, num_tokens: int) -> float:
    """Weight bytes a step of ``num_tokens`` reads: everything but the embedding table, and of the experts those that
    the tokens are expected to hit when each picks its own at random."""
    bits = 0.0
    for layer in shape.layers:
        p = layer.parameters
        bits += _layer_bits(p, form)
        if p.num_experts:
            missed = (1 - p.num_active_experts / p.num_experts) ** num_tokens
            bits -= missed * p.num_experts * p.expert * form.bits
    head = shape.head_parameters or shape.embedding_parameters
    return (bits + head * form.head_bits) / 8


def _layer_bits(p: LayerParameters, form: WeightFormat) -> float:
    plain = 16.0 if form.experts_only else form.bits
    wide = max(16.0, form.head_bits) if form.name == "fp32" else 16.0
    return (p.attention + p.dense) * plain + p.expert * p.num_experts * form.bits + p.vectors * wide
