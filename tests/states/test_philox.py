"""Philox against its published known answers, and tensors against those that an NVIDIA H200 drew."""

import numpy as np
import pytest

from hessfig.states.philox import LARGEST, cuda_normal, cuda_uniform, philox

# The known answers that come with the generator (Random123, kat_vectors): counter, key,
# words.
ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (2**32 - 1,) * 4,
        (2**32 - 1,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "words"), ANSWERS)
def test_philox_gives_its_known_answers(counter, key, words):
    a, b, c, d = (np.array([word]) for word in counter)
    assert tuple(int(word[0]) for word in philox((a, b, c, d), key)) == words


def test_an_offset_above_32_bits_and_a_long_seed_reach_the_high_words():
    plain = cuda_normal(4, seed=5, offset=8)
    assert not np.array_equal(cuda_normal(4, seed=5 + 2**32, offset=8), plain)
    assert not np.array_equal(cuda_normal(4, seed=5, offset=8 + 2**34), plain)


def test_normal_numbers_are_those_of_a_card_but_for_its_sine():
    """torch.empty(12, 128, device="cuda").normal_() after torch.cuda.manual_seed(1234), its first entries (H200)."""
    card = [
        -1.6164905,
        0.56845516,
        -0.5102248,
        -0.9113394,
        -1.1555164,
        -0.22615087,
        -1.2891326,
        1.065382,
    ]
    drawn = cuda_normal(1536, seed=1234, offset=0)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn[:8], card, rtol=0, atol=2.5e-6)


def test_uniform_numbers_are_those_of_a_card_to_the_bit():
    """The next 1536 entries of the same generator, uniform_(-b, b) with b = 128 ** -0.5: four of them (H200)."""
    drawn = cuda_uniform(1536, seed=1234, offset=4, bound=128**-0.5)
    assert np.array_equal(
        drawn[:4],
        np.array(
            [0.0213603377, -0.0835043862, -0.0308407508, -0.0686893612],
            dtype=np.float32,
        ),
    )


def test_tensors_whose_order_depends_on_the_card_are_refused():
    with pytest.raises(ValueError, match="depends on the card"):
        cuda_normal(LARGEST + 1, seed=0, offset=0)
