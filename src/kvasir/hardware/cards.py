"""The card list of the package, read once; names, aliases and prices."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kvasir.core.errors import ConfigError
from kvasir.hardware.card import GIB, DeviceCard, DeviceKind, MemoryBasis, PriceBasis, owned_price_per_hour


@cache
def device_cards() -> tuple[DeviceCard, ...]:
    """Every device the package knows, in the order of the file: by kind, then by age."""
    text = files("kvasir.hardware").joinpath("cards.json").read_text(encoding="utf-8")
    return tuple(_read_card(entry) for entry in json.loads(text)["cards"])


def find_card(name: str) -> DeviceCard:
    """The card called ``name`` or having it as an alias; case, blanks and hyphens do not matter."""
    known = {_folded(called): card for card in device_cards() for called in (card.name, *card.aliases)}
    card = known.get(_folded(name))
    if card is not None:
        return card
    close = difflib.get_close_matches(_folded(name), known, n=3)
    hint = " or ".join(dict.fromkeys(known[match].name for match in close))
    advice = f"did you mean {hint}?" if hint else "--list-hardware names all."
    raise ConfigError(f"No device is called {name!r}; {advice}")


def with_price(card: DeviceCard, prices: Mapping[str, float]) -> DeviceCard:
    """``card`` at the price per hour the user gives for it, where one is given.  Keys are names or aliases."""
    for name, price in prices.items():
        if _folded(name) in map(_folded, (card.name, *card.aliases)):
            return replace(card, price_per_hour_usd=price, price_basis=PriceBasis.GIVEN)
    return card


def _folded(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")


def _read_card(entry: dict[str, Any]) -> DeviceCard:
    price, basis = _price(entry)
    return DeviceCard(
        name=entry["name"],
        kind=DeviceKind(entry["kind"]),
        memory_bytes=int(entry["memory_gib"] * GIB),
        memory_basis=MemoryBasis(entry["memory_basis"]),
        bandwidth_bytes_per_s=entry["bandwidth_gb_s"] * 1e9,
        bf16_flops=entry["bf16_tflops"] * 1e12,
        fp8_flops=(entry["fp8_tflops"] or 0.0) * 1e12,
        max_devices=entry["max_devices"],
        link_bytes_per_s=(entry["link_gb_s"] or 0.0) * 1e9,
        price_per_hour_usd=price,
        price_basis=basis,
        source=entry["source"],
        date=entry["date"],
        aliases=tuple(entry["aliases"]),
    )


def _price(entry: dict[str, Any]) -> tuple[float | None, PriceBasis]:
    if entry["price_per_hour_usd"] is not None:
        return entry["price_per_hour_usd"], PriceBasis.RENTED
    if entry["list_price_usd"] is not None:
        return owned_price_per_hour(entry["list_price_usd"], entry["power_w"]), PriceBasis.OWNED
    return None, PriceBasis.UNKNOWN
