"""A head profile as a picture: which group each head is in, and the two repetition scores behind it."""

from pathlib import Path

from kvasir.compression.profile import HeadProfile
from kvasir.core.errors import ConfigError

_COLOURS = ("#1f5a99", "#8fbce6", "#e0a030", "#7a4b8c")


def draw_profile(profile: HeadProfile, path: Path) -> None:
    """Raises ``ConfigError`` when matplotlib is missing or ``path`` cannot be written."""
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ConfigError("Drawing needs matplotlib; pip install 'kvasir[plot]'.") from None
    maps = [("group", _group_map(profile)), *((name, profile.scores[name]) for name in _score_names(profile))]
    height = 0.9 + len(maps) * (0.7 + 0.22 * profile.num_kv_heads)
    figure = Figure(figsize=(max(7.0, 0.3 * profile.num_layers + 2.0), height), layout="constrained")
    axes = figure.subplots(len(maps), 1, squeeze=False)[:, 0]
    for axis, (name, table) in zip(axes, maps, strict=True):
        by_head = [list(column) for column in zip(*table, strict=True)]
        is_group = name == "group"
        colours = ListedColormap(_COLOURS[: len(profile.groups)]) if is_group else "magma"
        highest = max(max(row) for row in table) or 1.0
        limits = {"vmin": -0.5, "vmax": len(profile.groups) - 0.5} if is_group else {"vmin": 0.0, "vmax": highest}
        image = axis.pcolormesh(by_head, cmap=colours, edgecolors="white", linewidth=1.0, **limits)
        axis.set_yticks([head + 0.5 for head in range(profile.num_kv_heads)], range(profile.num_kv_heads))
        axis.set_xticks([layer + 0.5 for layer in range(0, profile.num_layers, 5)], range(0, profile.num_layers, 5))
        axis.invert_yaxis()
        axis.set_ylabel("KV head")
        axis.set_title("What each head keeps" if is_group else f"{name.capitalize()} score", loc="left", fontsize=10)
        if not is_group:
            figure.colorbar(image, ax=axis, pad=0.01)
    axes[-1].set_xlabel("layer")
    patches = [
        Patch(
            color=colour,
            label=f"{group.retention}, K {group.k_dtype.value}, V {group.v_dtype.value} ({len(group.heads)})",
        )
        for colour, group in zip(_COLOURS, profile.groups, strict=False)
    ]
    figure.legend(handles=patches, loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The picture cannot be written to {path} ({error}).") from None


def _score_names(profile: HeadProfile) -> list[str]:
    return [name for name in ("induction", "echo") if name in profile.scores]


def _group_map(profile: HeadProfile) -> tuple[tuple[float, ...], ...]:
    number = {head: float(i) for i, group in enumerate(profile.groups) for head in group.heads}
    return tuple(
        tuple(number[layer, head] for head in range(profile.num_kv_heads)) for layer in range(profile.num_layers)
    )
