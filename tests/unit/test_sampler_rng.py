"""The random numbers: the published Philox vectors, uniformity, and what a draw depends on."""

import numpy as np
import pytest

from kvasir.engine.rng import philox4x32, seeded_key, uniforms, unseeded_key

# Known-answer tests of the reference implementation that came with the Philox paper.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def _words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], dtype=np.uint32) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_known_answers(counter, key, expected):
    assert tuple(int(word[0]) for word in philox4x32(_words(*counter), _words(*key))) == expected


def test_uniforms_fill_the_unit_interval():
    n = 100_000
    numbers = uniforms(np.full(n, 7, dtype=np.uint64), np.zeros(n, dtype=np.int64), np.arange(n))
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=100, range=(0.0, 1.0))
    chi_square = ((counts - n / 100) ** 2 / (n / 100)).sum()
    assert chi_square < 149  # 99.9th percentile of 99 degrees of freedom
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_a_number_depends_on_its_own_key_index_and_position_only():
    keys = np.array([seeded_key(s) for s in range(8)], dtype=np.uint64)
    indices = np.arange(8, dtype=np.int64)
    positions = np.arange(100, 108, dtype=np.int64)
    together = uniforms(keys, indices, positions)
    for i in range(8):
        assert uniforms(keys[i : i + 1], indices[i : i + 1], positions[i : i + 1])[0] == together[i]
    assert (together != uniforms(keys, indices + 1, positions)).all()
    assert (together != uniforms(keys, indices, positions + 1)).all()
    assert (together != uniforms(keys + np.uint64(1), indices, positions)).all()


def test_positions_and_keys_use_all_their_bits():
    key = np.array([1, 1 | 1 << 40], dtype=np.uint64)
    same = np.zeros(2, dtype=np.int64)
    assert len(set(uniforms(key, same, same).tolist())) == 2
    assert len(set(uniforms(key[[0, 0]], same, np.array([5, 5 + (1 << 32)])).tolist())) == 2


def test_keys_accept_any_integer_and_keep_seeded_and_unseeded_apart():
    seeds = [0, 1, -1, 42, 2**63, 2**64 + 42, -(2**80)]
    keys = [seeded_key(seed) for seed in seeds] + [unseeded_key(seed, 0) for seed in seeds]
    keys += [unseeded_key(0, "a"), unseeded_key(0, 1)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)
