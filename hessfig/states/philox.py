"""Random tensors of PyTorch on a CUDA device, drawn on a CPU: Philox 4x32-10, normal and uniform numbers."""

import numpy as np

Words = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
OFFSET = 4  # by how much a tensor of at most LARGEST entries advances the generator: four words of each thread
# Threads that run at once on the smallest data-centre card (T4); beyond, a thread gives
# several entries.
LARGEST = 40_960
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_UNIT, _TURN = 2.0**-32, 2 * np.pi * 2.0**-32


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Return the four 32-bit words of Philox 4x32-10 for arrays of counters (four words each) and one key (two words).

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    a, b, c, d = (word.astype(np.uint64) for word in counter)
    for turn in range(_ROUNDS):
        keys = (
            np.uint64((word + turn * step) & 0xFFFFFFFF)
            for word, step in zip(key, _WEYL, strict=True)
        )
        first, second = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a = (second >> _HALF) ^ b ^ next(keys)
        b = second & _LOW
        c = (first >> _HALF) ^ d ^ next(keys)
        d = first & _LOW
    return a, b, c, d


def cuda_normal(count: int, *, seed: int, offset: int) -> np.ndarray:
    """Return the `count` entries of torch.empty(count, device="cuda").normal_() as float32.

    `offset` is that of the generator before the draw. The sine is that of the CPU. A
    card computes it with an absolute error near 2^-21: entries differ from those of an
    H200 by 2.5e-7 (root mean square), and by at most 2.5e-6. Raises ValueError for more
    than LARGEST entries, whose order depends on the card.
    """
    radius, angle = (
        word.astype(np.float32) for word in _words(count, seed, offset)[:2]
    )
    u = radius * np.float32(_UNIT) + np.float32(_UNIT / 2)
    v = angle * np.float32(_TURN) + np.float32(_TURN / 2)
    return np.sqrt(np.float32(-2) * np.log(u)) * np.sin(v)


def cuda_uniform(count: int, *, seed: int, offset: int, bound: float) -> np.ndarray:
    """Return the entries of torch.empty(count, device="cuda").uniform_(-bound, bound) as float32 (see cuda_normal)."""
    u = _words(count, seed, offset)[0].astype(np.float32) * np.float32(
        _UNIT
    ) + np.float32(_UNIT / 2)
    low = np.float32(-bound)
    span = np.float32(bound) - np.float32(-bound)
    # Exact, as in the card's fused multiply-add.
    scaled = np.where(u == 1, 0, u).astype(np.float64) * span
    return (scaled + low).astype(np.float32)


def _words(count: int, seed: int, offset: int) -> Words:
    """Return the words of one counter for each entry: entry i is of thread i."""
    if count > LARGEST:
        raise ValueError(
            f"{count} entries: from {LARGEST} on, their order depends on the card"
        )
    number = offset // OFFSET
    threads = np.arange(count)
    high_and_low = (np.full(count, number & 0xFFFFFFFF), np.full(count, number >> 32))
    return philox(
        (*high_and_low, threads, np.zeros(count)),
        (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF),
    )
