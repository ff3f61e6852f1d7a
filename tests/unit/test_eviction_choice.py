"""Which tokens heads keep: KeyDiff against its definition, lots, and what is protected."""

import numpy as np
import pytest
import torch

from kvasir.compression.eviction import kept_positions, keydiff_scores, random_scores
from kvasir.kv.eviction import parse_eviction

RULE = parse_eviction("keydiff:keep=0.4,sinks=3,recent=5")
LOTS = parse_eviction("random:keep=0.4,sinks=3,recent=5,seed=2")


def keys(num=50, heads=3, dim=16, seed=0) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    common = 2 * torch.randn(heads, 1, dim, generator=generator)
    return (common + torch.randn(heads, num, dim, generator=generator)).numpy()


def test_keydiff_is_minus_the_cosine_with_the_mean_direction():
    rows = torch.from_numpy(keys())
    anchor = torch.nn.functional.normalize(rows, dim=2).mean(dim=1, keepdim=True)
    cosines = torch.nn.functional.cosine_similarity(rows, anchor, dim=2).numpy()
    scores = keydiff_scores(rows.numpy())
    for head in range(3):
        assert np.corrcoef(scores[head], -cosines[head])[0, 1] == pytest.approx(1.0, abs=1e-6)
        assert np.argsort(scores[head]).tolist() == np.argsort(-cosines[head]).tolist()


def test_a_key_that_points_elsewhere_stays():
    rows = keys()
    rows[1, 20] *= -1.0
    rule = parse_eviction("keydiff:keep=0.02,sinks=0,recent=0")
    assert kept_positions(keydiff_scores(rows), rule, 0)[1].tolist() == [20]


def test_every_head_keeps_equally_many_and_what_is_protected():
    kept = kept_positions(keydiff_scores(keys()), RULE, num_pinned=7)
    assert kept.shape == (3, 20)
    assert (np.diff(kept) > 0).all(), "ascending, none twice"
    for head in kept.tolist():
        assert set(head) >= {*range(7), *range(45, 50)}
    assert len({tuple(head) for head in kept.tolist()}) == 3, "each head chooses for itself"


def test_the_rest_are_the_highest_scores():
    scores = np.arange(50.0)[None]
    assert kept_positions(scores, RULE, 0)[0].tolist() == [0, 1, 2, *range(33, 50)]
    assert kept_positions(np.zeros((1, 50)), RULE, 0)[0].tolist() == [*range(15), *range(45, 50)], "ties: the earlier"


def test_zeros_and_what_is_no_number():
    rows = keys()
    rows[0, 10] = 0.0
    rows[0, 11, 3] = np.nan
    rows[2, 12, 0] = np.inf
    scores = keydiff_scores(rows)
    assert not np.isnan(scores).any()
    assert scores[0, 10] == 0.0
    assert scores[0, 11] == scores[2, 12] == np.inf


def test_lots_are_a_matter_of_seed_head_and_position():
    a = random_scores(LOTS, 4, [0, 2], 50)
    assert (a == random_scores(LOTS, 4, [0, 2], 50)).all()
    assert (a == random_scores(LOTS, 4, [0, 2], 90)[:, :50]).all()
    assert (a[1] == random_scores(LOTS, 4, [2], 50)[0]).all()
    others = [
        random_scores(LOTS, 5, [0], 50)[0],
        random_scores(parse_eviction("random:keep=0.4,seed=3"), 4, [0], 50)[0],
    ]
    assert all(abs(np.corrcoef(a[0], other)[0, 1]) < 0.5 for other in [a[1], *others])


def test_lots_are_fair():
    kept = kept_positions(random_scores(LOTS, 0, list(range(400)), 50), LOTS, 0)
    share = np.bincount(kept.flatten(), minlength=50)[3:45] / 400
    assert share.mean() == pytest.approx(12 / 42, abs=0.01)
    assert np.abs(share - 12 / 42).max() < 0.1
