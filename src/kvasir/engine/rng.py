"""Counter-based random numbers: a draw is a pure function of (seed, sequence index, position), of nothing else.

The generator is Philox-4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3",
SC 2011), written for whole arrays of counters at once.  It holds no state, so there is nothing that a batch mate,
a preemption or a restart could disturb.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: tuple[U32, U32, U32, U32], key: tuple[U32, U32]) -> tuple[U32, U32, U32, U32]:
    """Philox-4x32-10 on arrays of counters and keys that broadcast together; each word is uint32."""
    # 64-bit lanes: the high and low halves of a product of two 32-bit words are both needed.
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    for round_number in range(_NUM_ROUNDS):
        r0 = (k0 + np.uint64(round_number * _KEY_STEPS[0])) & _LOW
        r1 = (k1 + np.uint64(round_number * _KEY_STEPS[1])) & _LOW
        p0 = _MULTIPLIERS[0] * c0
        p1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ r0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ r1, p0 & _LOW
    return c0.astype(np.uint32), c1.astype(np.uint32), c2.astype(np.uint32), c3.astype(np.uint32)


def uniforms(keys: U64, indices: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each (key, sequence index, position); all arrays [N]."""
    position = positions.astype(np.uint64)
    words = philox4x32(
        (
            (position & _LOW).astype(np.uint32),
            (position >> _HALF).astype(np.uint32),
            indices.astype(np.uint32),
            np.zeros_like(indices, dtype=np.uint32),
        ),
        ((keys & _LOW).astype(np.uint32), (keys >> _HALF).astype(np.uint32)),
    )
    bits = (words[0].astype(np.uint64) << _HALF | words[1].astype(np.uint64)) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def seeded_key(seed: int) -> int:
    """The 64-bit key of a request that brought its own ``seed`` (any integer, of any size and sign)."""
    return _hash64(f"request seed {seed}")


def unseeded_key(engine_seed: int, name: str | int) -> int:
    """The key of a request without a seed: reproducible from the engine's seed and what the engine calls it."""
    return _hash64(f"engine seed {engine_seed} for {name}")


def _hash64(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
