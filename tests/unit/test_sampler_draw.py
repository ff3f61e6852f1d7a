"""Drawing: the kept sets against brute force, the distribution by chi-square, and rows against themselves alone."""

import numpy as np
import pytest

from kvasir.engine import draw as draw_module
from kvasir.engine.draw import draw, total_mass
from kvasir.engine.draw_rows import DrawRows
from kvasir.engine.ranking import rank_best
from kvasir.engine.wide_draw import draw_wide


def make_rows(logits: np.ndarray, uniforms: np.ndarray | None = None, **settings) -> DrawRows:
    """Settings may be one value for all rows or one per row."""
    num_rows = len(logits)

    def column(name: str, default: float, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(settings.get(name, default), dtype=dtype), (num_rows,)).copy()

    return DrawRows(
        logits=logits,
        maxima=logits.max(axis=1),
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", 0, np.int64),
        top_p=column("top_p", 1.0, np.float64),
        min_p=column("min_p", 0.0, np.float64),
        uniforms=np.zeros(num_rows) if uniforms is None else uniforms,
    )


def make_logits(num_rows: int, vocab_size: int, spread: float = 3.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(num_rows, vocab_size)) * spread).astype(np.float32)


def brute_force(row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """The kept tokens and their probabilities, from the definition, in fp64."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    weights = {i: float(np.exp((float(row[i]) - float(row.max())) / temperature)) for i in order}
    kept = [i for i in order if weights[i] >= min_p]
    kept = kept[:top_k] if top_k else kept
    mass = sum(weights[i] for i in kept)
    nucleus, running = [], 0.0
    for i in kept:
        if top_p < 1.0 and running >= top_p * mass:
            break
        nucleus.append(i)
        running += weights[i]
    total = sum(weights[i] for i in nucleus)
    return {i: weights[i] / total for i in nucleus}


SETTINGS = [
    {},
    {"temperature": 0.6},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 20, "temperature": 1.4},
    {"top_p": 0.5},
    {"top_p": 0.9, "temperature": 1.3},
    {"min_p": 0.1},
    {"min_p": 0.02, "top_p": 0.8},
    {"min_p": 0.05, "top_k": 7, "top_p": 0.7, "temperature": 0.8},
    {"top_k": 10_000, "top_p": 0.95},
    {"top_p": 1e-9},
    {"min_p": 1.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_distribution_and_its_support_are_those_of_the_definition(settings):
    vocab_size, num_draws = 200, 10_000
    row = make_logits(1, vocab_size, spread=1.5, seed=3)[0]
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
    expected = brute_force(row, **full)
    # Evenly spaced numbers visit every token with a probability above their spacing; they make a sharp test.
    uniforms = (np.arange(num_draws) + 0.5) / num_draws
    tokens = draw(make_rows(np.tile(row, (num_draws, 1)), uniforms, **settings))
    counts = np.bincount(tokens, minlength=vocab_size)
    for token in range(vocab_size):
        wanted = expected.get(token, 0.0) * num_draws
        assert abs(counts[token] - wanted) <= 1.01, (token, counts[token], wanted)
        if token not in expected:
            assert counts[token] == 0


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"top_k": 12, "temperature": 1.2}], ids=str)
def test_random_draws_pass_a_chi_square_test(settings):
    from kvasir.engine.rng import seeded_key, uniforms

    row = make_logits(1, 300, spread=1.0, seed=5)[0]
    expected = brute_force(row, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings})
    n = 30_000
    numbers = uniforms(
        np.full(n, seeded_key(11), dtype=np.uint64), np.zeros(n, dtype=np.int64), np.arange(n, dtype=np.int64)
    )
    counts = np.bincount(draw(make_rows(np.tile(row, (n, 1)), numbers, **settings)), minlength=len(row))
    wanted = np.array([expected.get(i, 0.0) * n for i in range(len(row))])
    is_common = wanted >= 5
    statistic = ((counts - wanted)[is_common] ** 2 / wanted[is_common]).sum()
    degrees = is_common.sum() - 1
    # Wilson-Hilferty: the 99.9th percentile of chi-square.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * np.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < limit
    assert counts[wanted == 0].sum() == 0


@pytest.mark.parametrize("vocab_size", [1, 7, 16, 257, 4096, 49152])
def test_a_row_draws_the_same_alone_as_among_31_others(vocab_size):
    rng = np.random.default_rng(1)
    num_rows = 32
    logits = make_logits(num_rows, vocab_size, seed=2)
    rows = make_rows(
        logits,
        rng.random(num_rows),
        temperature=rng.choice([0.3, 0.8, 1.0, 1.7], num_rows),
        top_k=rng.choice([0, 0, 1, 40, 200], num_rows),
        top_p=rng.choice([1.0, 0.9, 0.999], num_rows),
        min_p=rng.choice([0.0, 0.0, 0.05], num_rows),
    )
    together = draw(rows)
    mass = total_mass(rows.logits, rows.maxima, rows.temperature)
    for r in range(num_rows):
        alone = rows.select(np.array([r]))
        assert draw(alone)[0] == together[r]
        assert total_mass(alone.logits, alone.maxima, alone.temperature)[0] == mass[r]
    order = rng.permutation(num_rows)
    assert (draw(rows.select(order)) == together[order]).all()


def test_every_stage_gives_the_same_tokens(monkeypatch):
    rng = np.random.default_rng(4)
    num_rows = 24
    logits = make_logits(num_rows, 40_000, seed=6)
    rows = make_rows(
        logits,
        rng.random(num_rows),
        temperature=rng.choice([0.5, 1.0, 2.5], num_rows),
        top_k=rng.choice([0, 30, 500, 5000], num_rows),
        top_p=rng.choice([0.5, 0.95, 1.0], num_rows),
        min_p=rng.choice([0.0, 0.01], num_rows),
    )
    staged = draw(rows)
    monkeypatch.setattr(draw_module, "STAGES", ())
    assert (draw(rows) == staged).all()
    monkeypatch.setattr(draw_module, "STAGES", (1, 17, 300, 2500))
    assert (draw(rows) == staged).all()


@pytest.mark.parametrize("spread", [0.02, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("has_ties", [False, True])
def test_bins_give_the_token_of_a_full_sort(spread, has_ties):
    rng = np.random.default_rng(8)
    num_rows, vocab_size = 60, 5003
    logits = make_logits(num_rows, vocab_size, spread=spread, seed=9)
    if has_ties:
        logits = np.round(logits, 1)
    logits[::7, : vocab_size // 3] = -np.inf
    rows = make_rows(
        logits,
        rng.choice([0.0, 0.3, 0.9, 1.0 - 2.0**-53], num_rows),
        temperature=rng.choice([0.1, 1.0, 1.5, 8.0], num_rows).astype(np.float32),
        top_k=vocab_size,
        top_p=rng.choice([1e-9, 0.5, 0.95, 0.9999], num_rows),
        min_p=rng.choice([0.0, 0.0, 1e-4, 0.05, 1.0], num_rows),
    )
    mass = np.where(rows.min_p > 0.0, np.nan, total_mass(rows.logits, rows.maxima, rows.temperature))
    sorted_tokens, is_settled = draw_module._draw_ranked(rows, mass, vocab_size)
    assert is_settled.all()
    assert (draw_wide(rows, mass) == sorted_tokens).all()


def test_a_flat_distribution_that_no_prefilter_covers_is_still_exact():
    vocab_size = 20_000
    logits = np.zeros((3, vocab_size), dtype=np.float32)
    uniforms = np.array([0.0, 0.5, 1.0 - 2.0**-53])
    tokens = draw(make_rows(logits, uniforms, top_p=0.5))
    # All equal: the nucleus is the lower half of the ids, in order.
    assert tokens.tolist() == [0, 5000, 9999]


def test_ties_at_the_top_k_boundary_keep_the_lowest_ids():
    logits = np.zeros((1, 5000), dtype=np.float32)
    logits[0, 4000] = 1.0
    seen = {int(draw(make_rows(logits, np.array([u]), top_k=3))[0]) for u in np.linspace(0, 1, 50, endpoint=False)}
    assert seen == {4000, 0, 1}


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.99}, {"top_k": 40}, {"min_p": 1e-6}], ids=str)
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
def test_banned_tokens_are_never_drawn(settings, uniform):
    logits = np.full((1, 100), -np.inf, dtype=np.float32)
    logits[0, [13, 57]] = [0.0, 1.0]
    assert draw(make_rows(logits, np.array([uniform]), **settings))[0] in (13, 57)


def test_extreme_temperatures():
    logits = make_logits(2, 1000)
    best = logits.argmax(axis=1)
    uniforms = np.array([0.999, 0.999])
    with np.errstate(all="raise", under="ignore"):
        assert (draw(make_rows(logits, uniforms, temperature=1e-38)) == best).all()
        assert (draw(make_rows(logits, uniforms, temperature=0.0, top_p=0.9)) == best).all()
        assert draw(make_rows(logits, uniforms, temperature=100.0)).shape == (2,)


@pytest.mark.parametrize("at_least", [1, 2, 20, 500, 10_000])
@pytest.mark.parametrize("vocab_size", [33, 1000, 5003])
def test_ranking_is_an_exact_sorted_upper_set(at_least, vocab_size):
    logits = np.round(make_logits(6, vocab_size), 1)  # rounding makes ties
    logits[1, : vocab_size // 2] = -np.inf
    logits[2] = 0.0
    logits[3, ::2] = -0.0
    logits[3, 1::2] = 0.0
    ranked = rank_best(logits, at_least)
    for r in range(len(logits)):
        order = np.lexsort((np.arange(vocab_size), -logits[r]))
        count = ranked.counts[r]
        assert count >= min(at_least, vocab_size)
        assert (ranked.ids[r, :count] == order[:count]).all()
        assert (ranked.logits[r, :count] == logits[r][order[:count]]).all()
        assert (ranked.logits[r, count:] == -np.inf).all()
    assert rank_best(logits[:1], at_least).counts[0] == ranked.counts[0]


def test_total_mass_against_fp64():
    logits = make_logits(5, 12_345, spread=4.0)
    temperature = np.array([0.5, 1.0, 1.5, 2.0, 30.0], dtype=np.float32)
    exact = np.exp((logits.astype(np.float64) - logits.max(axis=1, keepdims=True)) / temperature[:, None]).sum(axis=1)
    mass = total_mass(logits, logits.max(axis=1), temperature)
    assert np.allclose(mass, exact, rtol=2e-6, atol=0)
