"""Damage of an option and repetition scores, on tensors whose answer is known on paper."""

import pytest
import torch

from kvasir.compression.damage import HeadOption, LayerFacts, layer_damage, visible
from kvasir.compression.observer import LayerView
from kvasir.compression.repetition import layer_scores, longest_period, repeated_tokens
from kvasir.core.errors import ConfigError
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import FULL, sliding, windowed


def option(retention=FULL, dtype: KVDtype = KVDtype.FP32) -> HeadOption:
    return HeadOption(retention=retention.rounded(16), k_dtype=dtype, v_dtype=dtype)


def even_view(num_tokens: int = 48) -> LayerView:
    """All keys are 0, so attention is even over what is seen.  V of KV head 0 is (3, 0, ...) in block 0 and 0 after it;
    that of KV head 1 is the same everywhere."""
    v = torch.zeros(num_tokens, 2, 16)
    v[:16, 0, 0] = 3.0
    v[:, 1, 0] = 5.0
    return LayerView(
        layer=0,
        q=torch.ones(num_tokens, 2, 16),
        k=torch.zeros(num_tokens, 2, 16),
        v=v,
        energy=torch.full((num_tokens,), 4.0),
    )


def test_a_window_costs_what_it_hides() -> None:
    """The last query sees 48 tokens, a third of them in block 0: its output is 1.  Under a window of 16 it sees
    blocks 1 and 2 alone and gives 0.  With output weight 2 that moves the residual
    stream, of energy 4, by 2: a share of 1."""
    weight = 2.0 * torch.eye(16).expand(2, 16, 16)
    narrow, sunk, whole = option(windowed(sinks=0, window=16)), option(windowed(sinks=1, window=16)), option()
    found = layer_damage(even_view(), LayerFacts(output_weight=weight), (whole, narrow, sunk), torch.tensor([47]))
    assert found[narrow].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert found[sunk].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert found[whole].tolist() == [0.0, 0.0]


def test_query_heads_of_a_kv_head_count_together() -> None:
    view = even_view()
    twice = LayerView(layer=0, q=view.q.repeat_interleave(2, 1), k=view.k, v=view.v, energy=view.energy)
    weight = 2.0 * torch.eye(16).expand(4, 16, 16)
    narrow = option(windowed(sinks=0, window=16))
    found = layer_damage(twice, LayerFacts(output_weight=weight), (narrow,), torch.tensor([47]))[narrow]
    assert found.tolist() == pytest.approx([4.0, 0.0], abs=1e-6)


def test_a_format_costs_its_rounding() -> None:
    torch.manual_seed(0)
    view = LayerView(
        layer=0,
        q=torch.randn(64, 2, 16),
        k=torch.randn(64, 1, 16),
        v=torch.randn(64, 1, 16),
        energy=torch.ones(64),
    )
    weight = torch.eye(16).expand(2, 16, 16)
    eight, sixteen = option(dtype=KVDtype.INT8), option(dtype=KVDtype.BF16)
    found = layer_damage(view, LayerFacts(output_weight=weight), (eight, sixteen), torch.arange(32, 64))
    assert 0.0 < float(found[sixteen]) < 1e-4
    assert 0.0 < float(found[eight]) < 1e-3


def test_the_models_own_window_hides_nothing_twice() -> None:
    """Under the model's own window of 16 the last query sees no token of block 0, whatever we keep."""
    weight = torch.eye(16).expand(2, 16, 16)
    narrow = option(windowed(sinks=0, window=16))
    found = layer_damage(even_view(), LayerFacts(output_weight=weight, own=sliding(16)), (narrow,), torch.tensor([47]))
    assert found[narrow].tolist() == [0.0, 0.0]


def test_visible_tokens() -> None:
    seen = visible(windowed(sinks=16, window=16).rounded(16), torch.tensor([50]), 64)
    assert seen[0].nonzero().flatten().tolist() == [*range(16), *range(32, 64)]  # causality is the caller's


def _before(tokens: torch.Tensor) -> torch.Tensor:
    """At each position the token before it; nothing at the first."""
    return torch.cat([torch.zeros_like(tokens[:1]), tokens[:-1]])


def test_scores_of_a_copying_and_an_echoing_head() -> None:
    """Tokens are unit vectors, each different within a period.  KV head 0's keys hold the token before, so a query
    finds what follows its own earlier copies: induction 1.  KV head 1's keys hold the token itself: echo."""
    period, sharpness = 16, 400.0
    tokens = torch.eye(period).repeat(4, 1)
    k = torch.stack([_before(tokens), tokens], dim=1)
    q = torch.stack([tokens, tokens], dim=1) * sharpness
    induction, echo = layer_scores(q, k, period)
    assert induction[0] == pytest.approx(1.0, abs=1e-4)
    assert echo[0] == pytest.approx(0.0, abs=1e-4)
    # The query's own position holds its token too: a half, a third and a quarter of the weight stay there.
    assert echo[1] == pytest.approx(1.0 - (1 / 2 + 1 / 3 + 1 / 4) / 3, abs=1e-4)
    assert induction[1] == pytest.approx(0.0, abs=1e-4)


def test_a_kv_head_scores_as_its_best_query_head() -> None:
    tokens = torch.eye(16).repeat(4, 1)
    q = torch.stack([torch.zeros(64, 16), tokens * 400.0], dim=1)
    induction, _ = layer_scores(q, _before(tokens)[:, None], 16)
    assert induction.tolist() == pytest.approx([1.0], abs=1e-4)


def test_scores_do_not_depend_on_how_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(80, 4, 8), torch.randn(80, 2, 8)
    whole = layer_scores(q, k, 20)
    monkeypatch.setattr("kvasir.compression.repetition._ROWS_AT_ONCE", 7)
    for mine, theirs in zip(layer_scores(q, k, 20), whole, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_repeated_tokens_avoid_special_ids() -> None:
    made = repeated_tokens(100, {30, 31, 32}, 1, 20, seed=3)
    assert made.token_ids[0] == 1
    block = made.token_ids[1:21]
    assert made.token_ids[1:] == block * 4
    assert len(set(block)) == 20
    assert set(block) <= set(range(25, 75)) - {30, 31, 32}
    assert made == repeated_tokens(100, {32, 31, 30}, 1, 20, seed=3)


def test_the_period_fits_the_context() -> None:
    assert longest_period(8192, 400) == 400
    assert longest_period(1001, 400) == 250
    with pytest.raises(ConfigError, match="at least 8 tokens, and 3 fit"):
        repeated_tokens(100, (), None, longest_period(13, 400))
