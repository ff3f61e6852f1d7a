"""The choice of options under a budget, against every possible choice where those can be counted."""

import itertools
import random

import pytest

from kvasir.compression.choose import MOST_GROUPS, choose_options, lower_hull
from kvasir.core.errors import ConfigError


def test_hull_leaves_out_what_a_mixture_beats() -> None:
    points = [(1.0, 9.0, 0), (2.0, 8.0, 1), (3.0, 1.0, 2), (4.0, 1.5, 3), (5.0, 0.0, 4)]
    assert [point[2] for point in lower_hull(points)] == [0, 2, 4]


def test_of_equal_bytes_the_lesser_damage_is_taken() -> None:
    assert lower_hull([(1.0, 3.0, 0), (1.0, 2.0, 1), (2.0, 1.0, 2)]) == [(1.0, 2.0, 1), (2.0, 1.0, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_two_options_of_one_price_are_chosen_as_well_as_can_be(seed: int) -> None:
    """With two options every head's upgrade costs the same, and greedy is optimal: compared with all 2^6 choices."""
    rng = random.Random(seed)
    heads = [(layer, head) for layer in range(3) for head in range(2)]
    damage = {head: [rng.random() + 1.0, rng.random()] for head in heads}
    budget = 6 * 1.0 + rng.randrange(7) * 3.0
    choice = choose_options([1.0, 4.0], damage, (), (), budget)
    best = min(
        sum(damage[head][option] for head, option in zip(heads, options, strict=True))
        for options in itertools.product((0, 1), repeat=6)
        if sum((1.0, 4.0)[option] for option in options) <= budget
    )
    assert choice.damage == pytest.approx(best)
    assert choice.num_bytes <= budget


def test_protected_heads_take_only_what_they_may() -> None:
    damage = {(0, 0): [0.0, 0.0], (0, 1): [5.0, 0.0]}
    choice = choose_options([1.0, 4.0], damage, {(0, 0)}, {1}, 5.0)
    assert choice.option_of == {(0, 0): 1, (0, 1): 0}
    assert (choice.num_bytes, choice.damage) == (5.0, 5.0)


def test_equal_heads_are_taken_in_order() -> None:
    damage = {(layer, head): [1.0, 0.0] for layer in (1, 0) for head in (1, 0)}
    choice = choose_options([1.0, 2.0], damage, (), (), 6.0)
    assert [head for head, option in sorted(choice.option_of.items()) if option == 1] == [(0, 0), (0, 1)]


def test_never_more_groups_than_allowed() -> None:
    rng = random.Random(0)
    costs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    damage = {(layer, 0): sorted((rng.random() for _ in costs), reverse=True) for layer in range(60)}
    choice = choose_options(costs, damage, {(0, 0)}, {5}, 200.0)
    assert len(set(choice.option_of.values())) <= MOST_GROUPS
    assert choice.option_of[0, 0] == 5
    assert choice.num_bytes <= 200.0


def test_a_budget_below_the_cheapest_choice_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"4 bytes is below the 5 bytes.*1 retrieval heads"):
        choose_options([1.0, 4.0], {(0, 0): [1.0, 0.0], (0, 1): [1.0, 0.0]}, {(0, 0)}, {1}, 4.0)
