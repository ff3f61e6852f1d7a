"""Which bytes of a block's tiles belong to which token, so that tokens can move between slots as they are encoded."""

from dataclasses import replace

import torch
from torch import Tensor

from kvasir.formats.registry import FORMATS
from kvasir.kernels.interface import LayerKV

_WIDTHS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class SlotBytes:
    """For one layer's store: ``words[i]`` int64 [B, w] are the places of a token's words in the i-th tensor's tile (K's
    tensors, then V's), in one order for all slots; ``dtypes[i]`` is the integer as wide as such a word.

    The formats themselves are asked: a byte belongs to the token whose writing changes it, whatever it held.  Raises
    ``ValueError`` when a byte belongs to two tokens, or when slots are not alike: such a format cannot move tokens.
    """

    def __init__(self, kv: LayerKV, block_size: int, head_dim: int) -> None:
        self._block_size = block_size
        self.words: list[Tensor] = []
        self.dtypes: list[torch.dtype] = []
        rows = torch.linspace(-2.0, 3.0, head_dim).repeat(1, len(kv.heads), 1)
        tiles = [self._written(kv, rows, slot) for slot in range(block_size)]
        for i in range(len(kv.k) + len(kv.v)):
            places = [tile[i].nonzero().flatten() for tile in tiles]
            if len({len(place) for place in places}) != 1 or len(torch.cat(places).unique()) != sum(map(len, places)):
                raise ValueError(
                    f"{kv.k_dtype.value} K with {kv.v_dtype.value} V stores no token apart from the others"
                )
            words, width = _in_words(torch.stack(places))
            self.words.append(words)
            self.dtypes.append(_WIDTHS[width])

    def _written(self, kv: LayerKV, rows: Tensor, slot: int) -> list[Tensor]:
        """Per tensor, bool [tile bytes]: what writing one token to ``slot`` of an empty block changes."""
        changed: list[Tensor] = []
        for fill in (0, 255):
            blank = [torch.full_like(t[:1].view(torch.uint8), fill).view(t.dtype) for t in (*kv.k, *kv.v)]
            scratch = replace(kv, k=tuple(blank[: len(kv.k)]), v=tuple(blank[len(kv.k) :]))
            FORMATS[kv.k_dtype].encode_k(scratch, torch.tensor([slot]), rows)
            FORMATS[kv.v_dtype].encode_v(scratch, torch.tensor([slot]), rows)
            found = [tensor[0, 0].contiguous().view(torch.uint8).flatten() != fill for tensor in blank]
            changed = [a | b for a, b in zip(changed, found, strict=True)] if changed else found
        return changed

    def move(self, tensors: tuple[Tensor, ...], sources: Tensor, targets: Tensor) -> None:
        """Copy, for every head, the tokens in slots ``sources`` [h, n] (block * B + offset, int64) to ``targets`` [n].

        All are read before any is written.  ``tensors`` are the layer's, K's first; changed in place."""
        for tensor, places, dtype in zip(tensors, self.words, self.dtypes, strict=True):
            tile = tensor.view(torch.uint8).flatten(2).view(dtype)
            heads = torch.arange(tile.shape[1])[:, None, None]
            read = tile[(sources // self._block_size)[..., None], heads, places[sources % self._block_size]]
            tile[(targets // self._block_size)[None, :, None], heads, places[targets % self._block_size][None]] = read


def _in_words(places: Tensor) -> tuple[Tensor, int]:
    """Byte places [B, n] as places of the widest words that lie whole and aligned in all slots; and that width."""
    for width in _WIDTHS:
        if places.shape[1] % width:
            continue
        words = places.unflatten(1, (-1, width))
        is_run = (words == words[..., :1] + torch.arange(width)).all() and (words[..., 0] % width == 0).all()
        if is_run:
            return (words[..., 0] // width).contiguous(), width
    raise ValueError("a tile without bytes has no words")
