"""Loads the weights of a folder: checked in full before the first is converted, then layer by layer."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from kvasir.core.errors import ModelError
from kvasir.core.progress import Progress, no_progress
from kvasir.kernels.choice import KernelChoice
from kvasir.kernels.interface import HeadNorms, Kernels
from kvasir.kernels.select import make_kernels
from kvasir.models.config import ModelConfig
from kvasir.models.layers import LayerWeights, ModelWeights
from kvasir.models.linear import MAX_ROTATION, FloatLinear, Linear, LinearMaker, make_linear_maker, owned
from kvasir.models.parameters import EMBEDDING, FINAL_NORM, HEAD, is_recomputed, layer_name, parameter_shapes
from kvasir.models.safetensors_folder import MappedWeights, TensorEntry, read_weight_files
from kvasir.models.weight_dtype import WeightDtype

_STAGE = "load weights"


def load_weights(
    folder: Path,
    config: ModelConfig,
    weight_dtype: WeightDtype,
    progress: Progress | None = None,
    *,
    kernels: Kernels | None = None,
    max_rotation: int = MAX_ROTATION,
) -> ModelWeights:
    """The weights of a folder in Hugging Face layout, in ``weight_dtype``.

    ``kernels`` quantises int8 weights; by default the compiled ones where they were built, whatever the engine computes
    with, so that a model's codes do not depend on that.  ``max_rotation`` bounds the Hadamard block, 0 for none; other
    values than the default are for measurements.
    Needs the memory of the result and of one layer.  Raises ``ModelError``, one sentence naming the weight and its
    shape, when a weight is missing, unknown or of another shape than the config says.
    """
    progress = progress or no_progress
    progress(_STAGE, 0.0)
    files = MappedWeights(read_weight_files(folder))
    _check_names(files.entries, config)
    with torch.inference_mode():
        kernels = kernels or make_kernels(KernelChoice.AUTO, torch.get_num_threads())
        make_linear = make_linear_maker(weight_dtype, kernels, max_rotation)
        layers: list[LayerWeights] = []
        for layer in range(config.num_layers):
            layers.append(_LayerReader(files, config, layer, make_linear).read())
            files.release()
            progress(_STAGE, (layer + 1) / (config.num_layers + 1))
        embedding, head = _load_vocabulary(files, config, weight_dtype, make_linear)
        final_norm = owned(files.view(FINAL_NORM), torch.float32)
    progress(_STAGE, 1.0)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=final_norm,
        head=head,
        is_head_shared=config.tie_word_embeddings and weight_dtype is not WeightDtype.INT8,
    )


class _LayerReader:
    def __init__(self, files: MappedWeights, config: ModelConfig, layer: int, make_linear: LinearMaker) -> None:
        self._files = files
        self._config = config
        self._layer = layer
        self._make_linear = make_linear

    def read(self) -> LayerWeights:
        config = self._config
        norms = None
        if config.has_qk_norm:
            q_norm, k_norm = self._norm("self_attn.q_norm"), self._norm("self_attn.k_norm")
            norms = HeadNorms(q=q_norm, k=k_norm, eps=config.rms_norm_eps)
        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        return LayerWeights(
            attention_norm=self._norm("input_layernorm"),
            qkv=self._linear(qkv, config.has_qkv_bias),
            head_norms=norms,
            output=self._linear(("self_attn.o_proj",), config.has_output_bias),
            mlp_norm=self._norm("post_attention_layernorm"),
            gate_up=self._linear(("mlp.gate_proj", "mlp.up_proj"), config.has_mlp_bias),
            down=self._linear(("mlp.down_proj",), config.has_mlp_bias),
        )

    def _norm(self, module: str) -> Tensor:
        return owned(self._view(f"{module}.weight"), torch.float32)

    def _linear(self, modules: tuple[str, ...], has_bias: bool) -> Linear:
        bias = self._stacked(modules, "bias") if has_bias else None
        return self._make_linear(self._stacked(modules, "weight"), bias)

    def _stacked(self, modules: tuple[str, ...], kind: str) -> Tensor:
        views = [self._view(f"{module}.{kind}") for module in modules]
        return views[0] if len(views) == 1 else torch.cat(views)

    def _view(self, part: str) -> Tensor:
        return self._files.view(layer_name(self._layer, part))


def _load_vocabulary(
    files: MappedWeights, config: ModelConfig, weight_dtype: WeightDtype, make_linear: LinearMaker
) -> tuple[Tensor, Linear]:
    """The embedding and the head.  INT8 keeps the embedding in 16 bits: a table that is looked up needs no integers."""
    stored = files.view(EMBEDDING)
    if config.tie_word_embeddings and HEAD in files.entries and not torch.equal(files.view(HEAD), stored):
        raise ModelError(
            f"config.json ties the LM head to the embedding, but the weights hold another {HEAD} of shape "
            f"{list(files.entries[HEAD].shape)}."
        )
    head_name = EMBEDDING if config.tie_word_embeddings else HEAD
    if weight_dtype is WeightDtype.INT8:
        return owned(stored, _table_dtype(stored)), make_linear(files.view(head_name), None)
    embedding = owned(stored, torch.float32 if weight_dtype is WeightDtype.FP32 else torch.bfloat16)
    if config.tie_word_embeddings:
        return embedding, FloatLinear(embedding, None)
    return embedding, make_linear(files.view(head_name), None)


def _table_dtype(stored: Tensor) -> torch.dtype:
    """The 16-bit type that loses least: as stored, or fp16 for fp32 values within its range, else bf16."""
    if stored.dtype is not torch.float32:
        return stored.dtype
    low, high = torch.aminmax(stored)
    limit = torch.finfo(torch.float16).max
    return torch.float16 if -limit <= low and high <= limit else torch.bfloat16


def _check_names(entries: dict[str, TensorEntry], config: ModelConfig) -> None:
    expected = parameter_shapes(config)
    optional = {HEAD: expected[EMBEDDING]} if config.tie_word_embeddings else {}
    missing = [name for name in expected if name not in entries]
    if missing:
        shape = list(expected[missing[0]])
        raise ModelError(f"The weights lack {missing[0]} of shape {shape}{_and_more(missing)}.")
    known = expected | optional
    unknown = sorted(name for name in entries if name not in known and not is_recomputed(name))
    if unknown:
        raise ModelError(
            f"The weights hold {unknown[0]} of shape {list(entries[unknown[0]].shape)}{_and_more(unknown)}, which a "
            f"{config.architecture} model of this config has no use for."
        )
    for name, shape in known.items():
        if name in entries and entries[name].shape != shape:
            raise ModelError(
                f"The weight {name} has shape {list(entries[name].shape)}, but config.json says {list(shape)}."
            )


def _and_more(names: Iterable[str]) -> str:
    count = len(list(names)) - 1
    return f" (and {count} more)" if count else ""
