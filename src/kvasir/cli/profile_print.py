"""A head profile in the terminal: the layer x head map, the groups, and where the scores come from."""

from kvasir.cli.console import print_table
from kvasir.compression.profile import HeadProfile
from kvasir.kv.retention import RetentionKind

_LETTERS = {RetentionKind.FULL: "FEDC", RetentionKind.WINDOW: "wxyz"}
"""Capitals keep everything; the first letter is the first group of its kind."""


def print_profile(profile: HeadProfile) -> None:
    letters = group_letters(profile)
    of_head = {head: letter for letter, group in zip(letters, profile.groups, strict=True) for head in group.heads}
    print(f"{profile.model_name}, {profile.num_layers} layers of {profile.num_kv_heads} KV heads")
    print(_ruler(profile.num_layers))
    for head in range(profile.num_kv_heads):
        line = "".join(of_head[layer, head] for layer in range(profile.num_layers))
        print(f"{f'head {head}':>8} {line}")
    rows = [
        (letter, str(group.retention), group.k_dtype.value, group.v_dtype.value, str(len(group.heads)))
        for letter, group in zip(letters, profile.groups, strict=True)
    ]
    print_table("", ["", "keeps", "K", "V", ">heads"], rows)
    share, context = profile.recipe.get("share_of_bf16"), profile.recipe.get("context")
    if isinstance(share, float) and isinstance(context, int):
        print(f"{share:.3f} of the KV bytes of a 16-bit cache at {context} tokens.")


def group_letters(profile: HeadProfile) -> list[str]:
    """One letter a group, unlike all others."""
    seen: dict[RetentionKind, int] = {}
    letters = []
    for group in profile.groups:
        kind = group.retention.kind
        letters.append(_LETTERS[kind][seen.get(kind, 0) % 4])
        seen[kind] = seen.get(kind, 0) + 1
    return letters


def _ruler(num_layers: int) -> str:
    marks = "".join(f"{layer:<10}" for layer in range(0, num_layers, 10))
    return f"{'layer':>8} {marks}".rstrip()
