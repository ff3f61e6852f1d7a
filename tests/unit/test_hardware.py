"""Device cards: sane, sourced, found by any of their names; the roofline over them."""

import pytest

from kvasir.core.errors import ConfigError
from kvasir.hardware.card import GIB, DeviceKind, MemoryBasis, PriceBasis, owned_price_per_hour
from kvasir.hardware.cards import device_cards, find_card, with_price
from kvasir.hardware.roofline import IDEAL, Roofline, StepConstants, StepWork
from kvasir.hardware.this_machine import this_machine


def test_every_kind_is_there():
    assert {card.kind for card in device_cards()} == set(DeviceKind)
    assert len(device_cards()) >= 60


@pytest.mark.parametrize("card", device_cards(), ids=lambda card: card.name)
def test_a_card_is_plausible_and_says_where_it_is_from(card):
    assert card.source and len(card.date) == 7 and card.date[4] == "-"
    assert 4 * GIB < card.memory_bytes < 1000 * GIB
    assert 10e9 < card.bandwidth_bytes_per_s < 20e12
    assert 0.05e12 < card.bf16_flops < 10e15
    assert card.fp8_flops == 0 or 1 <= card.fp8_flops / card.bf16_flops <= 2.2
    assert (card.max_devices > 1) == (card.link_bytes_per_s > 0)
    assert (card.price_per_hour_usd is None) == (card.price_basis is PriceBasis.UNKNOWN)


def test_names_and_aliases_are_unambiguous():
    seen: dict[str, str] = {}
    for card in device_cards():
        for name in {card.name.lower().replace("-", "").replace(" ", ""), *(a.lower() for a in card.aliases)}:
            folded = name.replace("-", "").replace(" ", "")
            assert seen.setdefault(folded, card.name) == card.name


@pytest.mark.parametrize(("said", "name"), [("h100", "H100-SXM"), ("RTX 4090", "RTX-4090"), ("dgx_spark", "GB10")])
def test_a_card_is_found_however_it_is_written(said, name):
    assert find_card(said).name == name


def test_an_unknown_device_is_refused_with_close_ones():
    with pytest.raises(ConfigError, match="H100"):
        find_card("H10O-SXM")


@pytest.mark.parametrize(
    ("name", "gib"), [("T4", 14.56), ("A10G", 22.06), ("L40S", 44.4), ("H200", 139.7), ("GB10", 121.7)]
)
def test_memory_is_what_drivers_report(name, gib):
    card = find_card(name)
    assert card.memory_basis is MemoryBasis.LOG
    assert card.memory_gib == pytest.approx(gib, abs=0.01)


def test_prices_can_be_given_by_any_name():
    assert with_price(find_card("H100"), {"h100 sxm5": 2.5}).price_per_hour_usd == 2.5
    assert with_price(find_card("H100"), {"h100": 2.5}).price_basis is PriceBasis.GIVEN
    assert with_price(find_card("H100"), {"H200": 2.5}) == find_card("H100")


def test_an_owned_device_costs_its_price_over_three_years_and_its_power():
    assert owned_price_per_hour(26_280, 1000) == pytest.approx(1.15)
    assert find_card("RTX-4090").price_basis is PriceBasis.OWNED


def test_8_bit_units_multiply_8_bit_weights_only():
    card = find_card("H100")
    assert card.flops(8) == card.fp8_flops > card.flops(16) == card.flops(4.2) == card.bf16_flops
    assert find_card("A100").flops(8) == find_card("A100").bf16_flops


def test_a_step_takes_the_larger_of_memory_and_compute():
    roof = Roofline(card=find_card("A100"), flops_per_s=100e12)
    by_memory, by_compute = StepWork(num_bytes=2039e9, num_flops=1e12), StepWork(num_bytes=1e9, num_flops=300e12)
    assert roof.step_s(by_memory) == pytest.approx(1.0)
    assert roof.step_s(by_compute) == pytest.approx(3.0)


def test_overheads_come_on_top_and_links_only_between_devices():
    constants = StepConstants(
        bandwidth_efficiency=0.5,
        flops_efficiency=0.25,
        step_overhead_s=0.01,
        link_overhead_s=0.001,
        sequence_overhead_s=0.1,
        token_overhead_s=0.2,
    )
    work = StepWork(num_bytes=2039e9, num_flops=0, num_layers=10, num_sequences=2, num_tokens=3)
    one = Roofline(card=find_card("A100"), flops_per_s=1e12, constants=constants)
    two = Roofline(card=find_card("A100"), flops_per_s=1e12, constants=constants, num_devices=2)
    assert one.step_s(work) == pytest.approx(2 + 0.01 + 0.2 + 0.6)
    assert two.step_s(work) - one.step_s(work) == pytest.approx(0.01)
    assert Roofline(card=one.card, flops_per_s=1e12, constants=IDEAL).step_s(work) == pytest.approx(1.0)


def test_this_machine_is_a_card_like_any_other():
    card = this_machine(memory_bytes=8 * GIB, bandwidth_bytes_per_s=2e10, flops=1e11, int8_ops=4e11, source="cpu")
    assert (card.kind, card.memory_basis) == (DeviceKind.CPU, MemoryBasis.MEASURED)
    assert card.flops(8) == 4e11
