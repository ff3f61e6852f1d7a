"""Controls: where a setting chooses heads, the same bytes without choosing; the choice must beat them."""

from dataclasses import replace

import pytest
from lab_models import RETRIEVAL_HEAD
from lab_setup import SIXTEEN_BITS, measured, small_lab

from kvasir.kv.eviction import EvictionKind, parse_eviction
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import sliding
from kvasir.kv.spec import KVSpec
from kvasir.lab.controls import eviction_by_lot, has_chosen_heads, heads_at_random, one_window
from kvasir.lab.measures.copy_gap import CopyGap
from kvasir.lab.setting import Setting, parse_setting
from kvasir.lab.subject import LocalSubject, bytes_per_token

CONTEXT = 1024


def layout(num_layers: int = 6, windows: tuple[int | None, ...] | None = None) -> KVLayout:
    geometry = KVGeometry(
        num_layers=num_layers, num_kv_heads=3, head_dim=64, sliding_windows=windows or (None,) * num_layers
    )
    return KVLayout.from_geometry(geometry, block_size=16, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16)


def keep(whole: KVLayout, kept: set[tuple[int, int]], window: int = 128) -> KVLayout:
    """``kept`` pairs stay whole, all others of the first group get a window: what a head profile leads to."""
    first, *rest = whole.groups

    def part(is_kept: bool) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(head for head in heads if ((layer, head) in kept) is is_kept)
            for layer, heads in enumerate(first.heads_by_layer)
        )

    groups = (
        replace(first, heads_by_layer=part(True)),
        replace(first, heads_by_layer=part(False), retention=sliding(window)),
    )
    return replace(whole, groups=(*groups, *rest))


def num_bytes(found: KVLayout) -> float:
    return bytes_per_token(found, CONTEXT) * CONTEXT


def pairs(spec: KVSpec) -> set[tuple[int, int]]:
    return {(layer, head) for layer, heads in enumerate(spec.heads_by_layer) for head in heads}


FULL = (None,) * 6
CHOSEN = keep(layout(), {(1, 0), (3, 2), (5, 1)})


def test_who_chooses():
    assert has_chosen_heads(CHOSEN, FULL)
    assert not has_chosen_heads(layout(), FULL)
    models_own = (None, 64, None, 64, None, 64)
    assert not has_chosen_heads(layout(windows=models_own), models_own)


def test_a_lot_costs_the_same_and_draws_other_heads():
    drawn = heads_at_random(CHOSEN, FULL, seed=1)
    assert num_bytes(drawn) == num_bytes(CHOSEN)
    assert [spec.retention for spec in drawn.groups] == [spec.retention for spec in CHOSEN.groups]
    assert len(pairs(drawn.groups[0])) == 3 and pairs(drawn.groups[0]) != pairs(CHOSEN.groups[0])
    assert heads_at_random(CHOSEN, FULL, seed=1) == drawn
    assert heads_at_random(CHOSEN, FULL, seed=2) != drawn


def test_a_lot_leaves_the_models_own_windows_alone():
    models_own = (None, 64, None, 64, None, 64)
    chosen = keep(layout(windows=models_own), {(0, 0), (4, 1)})
    drawn = heads_at_random(chosen, models_own, seed=3)
    own = [spec for spec in drawn.groups if spec.retention == sliding(64)]
    assert [pairs(spec) for spec in own] == [{(layer, head) for layer in (1, 3, 5) for head in range(3)}]
    assert num_bytes(drawn) == num_bytes(chosen)


def test_one_window_costs_no_more_and_nearly_as_much():
    alike = one_window(CHOSEN, FULL, CONTEXT)
    assert alike is not None and len(alike.groups) == 1
    assert alike.groups[0].retention.window > 128
    one_block = alike.groups[0].block_bytes
    assert num_bytes(CHOSEN) - one_block < num_bytes(alike) <= num_bytes(CHOSEN)


def test_without_a_window_there_is_none_to_make_alike():
    dtypes = replace(
        CHOSEN, groups=tuple(replace(spec, retention=layout().groups[0].retention) for spec in CHOSEN.groups)
    )
    assert one_window(dtypes, FULL, CONTEXT) is None


def test_a_right_choice_beats_both_controls_on_the_real_engine(induction_model):
    """The retrieval head and the one it builds on stay whole, the other two heads get 64 tokens: nothing is lost.
    The same bytes by lot, or under one window, lose the copy."""

    def choose(whole: KVLayout) -> KVLayout:
        return keep(whole, {RETRIEVAL_HEAD}, window=64)

    with small_lab(induction_model, [Setting(name="whole", flags=SIXTEEN_BITS)]) as lab:
        whole = lab.settings[0]
        assert isinstance(whole, LocalSubject)
        drawn = {
            seed: pairs(heads_at_random(choose(whole.engine.layout), (None, None), seed).groups[0]) for seed in range(9)
        }
    unlucky = next(seed for seed, kept in drawn.items() if RETRIEVAL_HEAD not in kept)
    alike = one_window(choose(whole.engine.layout), (None, None), 700)
    assert alike is not None
    settings = [
        Setting(name="chosen", flags=SIXTEEN_BITS, alter_layout=choose),
        Setting(
            name="by lot",
            flags=SIXTEEN_BITS,
            alter_layout=lambda found: heads_at_random(choose(found), (None, None), unlucky),
        ),
        Setting(name="one window", flags=SIXTEEN_BITS, alter_layout=lambda _: alike),
    ]
    with small_lab(induction_model, settings) as lab:
        result = measured(lab, CopyGap(distances=(500,), num_seeds=2, block_tokens=32))
        facts = {subject.name: subject.facts() for subject in lab.subjects if isinstance(subject, LocalSubject)}
    gaps = {name: result.settings[name].tasks["random, 500 tokens apart"]["gap"].value for name in facts}
    assert gaps["chosen"] == pytest.approx(0.0, abs=0.01)
    assert gaps["by lot"] > 5.0 and gaps["one window"] > 5.0
    assert facts["by lot"].bytes_per_token == facts["chosen"].bytes_per_token < facts["16-bit"].bytes_per_token
    assert facts["one window"].bytes_per_token <= facts["chosen"].bytes_per_token


def test_controls_come_with_a_setting_that_chooses(induction_model, monkeypatch):
    """As a head profile would: the configuration itself leads to a layout with chosen heads."""
    from kvasir.engine import pool_plan

    sound = pool_plan.make_layout
    monkeypatch.setattr(
        pool_plan,
        "make_layout",
        lambda model, cache, *rest: (
            keep(sound(model, cache, *rest), {RETRIEVAL_HEAD}, 64)
            if cache.block_size == 32
            else sound(model, cache, *rest)
        ),
    )
    with small_lab(induction_model, [Setting(name="profile", flags={"block_size": "32"})]) as lab:
        names = [subject.name for subject in lab.settings]
    assert names == ["profile", "profile, heads by lot", "profile, one window"]


def test_a_scored_eviction_is_measured_beside_lots(induction_model):
    rule = parse_eviction("keydiff:keep=0.3,sinks=2,recent=9")
    lots = eviction_by_lot(rule)
    assert lots is not None
    assert (lots.kind, lots.num_kept(1000, 50)) == (EvictionKind.RANDOM, rule.num_kept(1000, 50))
    assert eviction_by_lot(lots) is None
    assert eviction_by_lot(None) is None
    setting = parse_setting("third=kv_eviction:keydiff:keep=0.3,sinks=2,recent=9,block_size:32")
    with small_lab(induction_model, [setting]) as lab:
        named = {subject.name: subject for subject in lab.subjects if isinstance(subject, LocalSubject)}
        assert named["third, by lot"].engine.config.cache.eviction == lots
        assert named["third"].engine.config.cache.eviction == rule
        assert named["third, by lot"].engine.config.cache.block_size == 32
        assert named["third"].facts().bytes_per_token < 0.4 * lab.reference.facts().bytes_per_token
