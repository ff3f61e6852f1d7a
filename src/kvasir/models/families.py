"""What each family's config switches: biases, head norms, windows.  One function a family, nothing else differs."""

from dataclasses import dataclass

from kvasir.core.errors import ModelError
from kvasir.models.foreign import ForeignConfig

_QWEN3_HEAD_DIM = 128
"""What a Qwen3 config without head_dim means."""
_MISTRAL_WINDOW = 4096
"""What a Mistral config without sliding_window means; null means none."""
_QWEN_WINDOW = 4096
_QWEN_FIRST_WINDOW_LAYER = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """``default_head_dim`` None: hidden_size / num_attention_heads.  ``sliding_windows``: one per layer."""

    sliding_windows: tuple[int | None, ...]
    default_head_dim: int | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False


def read_llama(config: ForeignConfig) -> FamilyTraits:
    if config.get("sliding_window") is not None and config.flag("use_sliding_window", True):
        raise ModelError(
            f"{config.label} of a llama model has sliding_window = {config.get('sliding_window')!r}, "
            "which the architecture does not know; 'mistral' does."
        )
    has_bias = config.flag("attention_bias", False)
    return FamilyTraits(
        sliding_windows=(None,) * config.count("num_hidden_layers"),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=config.flag("mlp_bias", False),
    )


def read_mistral(config: ForeignConfig) -> FamilyTraits:
    num_layers = config.count("num_hidden_layers")
    is_windowless = "sliding_window" in config.values and config.get("sliding_window") is None
    window = None if is_windowless else config.count("sliding_window", _MISTRAL_WINDOW)
    windows = (window,) * num_layers
    if config.get("layer_types") is not None and _typed_windows(config, window or 0) != windows:
        raise ModelError(f"{config.label} of a mistral model mixes layer_types; in mistral all layers are alike.")
    return FamilyTraits(sliding_windows=windows)


def read_qwen2(config: ForeignConfig) -> FamilyTraits:
    return FamilyTraits(sliding_windows=_qwen_windows(config), has_qkv_bias=True)


def read_qwen3(config: ForeignConfig) -> FamilyTraits:
    has_bias = config.flag("attention_bias", False)
    return FamilyTraits(
        sliding_windows=_qwen_windows(config),
        default_head_dim=_QWEN3_HEAD_DIM,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_qk_norm=True,
    )


def _qwen_windows(config: ForeignConfig) -> tuple[int | None, ...]:
    """``use_sliding_window`` is the main switch; ``layer_types`` says where, else ``max_window_layers`` does:

    layer:  0 ... max_window_layers - 1 | max_window_layers ...
                       full             |       sliding
    """
    num_layers = config.count("num_hidden_layers")
    is_windowed = config.flag("use_sliding_window", False)
    is_windowless = "sliding_window" in config.values and config.get("sliding_window") is None
    window = config.count("sliding_window", _QWEN_WINDOW) if is_windowed and not is_windowless else None
    if config.get("layer_types") is not None:
        return _typed_windows(config, window or 0)
    if window is None:
        return (None,) * num_layers
    first = _QWEN_FIRST_WINDOW_LAYER
    if config.get("max_window_layers") is not None:
        # 0 is a meaningful value here: every layer slides.
        first = 0 if config.get("max_window_layers") == 0 else config.count("max_window_layers")
    return tuple(None if layer < first else window for layer in range(num_layers))


def _typed_windows(config: ForeignConfig, window: int) -> tuple[int | None, ...]:
    num_layers = config.count("num_hidden_layers")
    types = config.get("layer_types")
    if not isinstance(types, list) or len(types) != num_layers:
        raise ModelError(f"{config.label} has layer_types = {types!r}; it must list one type for each layer.")
    windows: list[int | None] = []
    for kind in types:
        if kind == "full_attention":
            windows.append(None)
        elif kind == "sliding_attention" and window:
            windows.append(window)
        elif kind == "sliding_attention":
            raise ModelError(f"{config.label} has layers of type 'sliding_attention' but no window is switched on.")
        else:
            raise ModelError(f"The layer type {kind!r} is not served; served are full_attention and sliding_attention.")
    return tuple(windows)
