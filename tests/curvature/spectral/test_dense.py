"""All eigenvalues of blocks: against numpy's of oracles, in place, and refused where they are not symmetric."""

import numpy as np
import pytest
import torch

from hessfig.curvature.column import SPLIT, completed, to_multiply
from hessfig.curvature.spectral.densities import dense_eigenvalues
from hessfig.terms import PARTS, Part
from tests.curvature.spectral.matrices import rotated
from tests.daily import daily, thinned


class Parts:
    """A column of one square block whose parts are given matrices."""

    bytes_per_probe = 1

    def __init__(self, outer, functional):
        self.given = {Part.H_o: outer, Part.H_f: functional, Part.H: outer + functional}
        self.dim = len(outer)
        self.dtype = outer.dtype
        self.shape = torch.Size([len(outer)])
        self.like = outer.new_empty(0)

    def split_matmat(self, probes, parts=SPLIT):
        return completed(
            {("W", part): self.given[part] @ probes for part in to_multiply(parts)},
            parts,
        )


def parts_of(dim, seed=0):
    outer = rotated(torch.linspace(0, 3, dim, dtype=torch.float64), seed=seed)
    return Parts(
        outer, rotated(torch.linspace(-1, 1, dim, dtype=torch.float64), seed=seed + 1)
    )


@pytest.mark.parametrize(
    "asked",
    thinned(
        [[Part.H_o, Part.H_f, Part.H], [Part.H], [Part.H_f, Part.H], [Part.H_o]], 2
    ),
)
@pytest.mark.parametrize("dim", daily([1, 63, 600], 1, 63))
def test_every_part_has_numpys_eigenvalues(dim, asked):
    """600 rows: several bands and chunks; H's eigenvalues come from a triangle that is put back."""
    column = parts_of(dim)
    found = dense_eigenvalues(column, "W", asked)
    assert list(found) == asked
    for part, values in found.items():
        np.testing.assert_allclose(
            values, np.linalg.eigvalsh(column.given[part].numpy()), rtol=0, atol=1e-12
        )


def test_what_is_not_symmetric_is_refused():
    column = parts_of(30)
    column.given[Part.H_f] = torch.randn(30, 30, dtype=torch.float64)
    with pytest.raises(
        ArithmeticError, match="H_f are not those of a symmetric operator"
    ):
        dense_eigenvalues(column, "W", [Part.H_f])


def test_noise_of_a_part_that_vanishes_has_no_symmetry_to_keep():
    column = parts_of(30)
    column.given[Part.H_f] = 1e-18 * torch.randn(30, 30, dtype=torch.float64)
    assert dense_eigenvalues(column, "W", [Part.H_f])[Part.H_f] is not None


def test_a_part_that_is_not_finite_has_none_and_the_others_stay():
    column = parts_of(30)
    column.given[Part.H_f] = torch.full((30, 30), torch.inf, dtype=torch.float64)
    found = dense_eigenvalues(column, "W", list(PARTS))
    assert found[Part.H] is None
    assert found[Part.H_f] is None
    np.testing.assert_allclose(
        found[Part.H_o], np.linspace(0, 3, 30), rtol=0, atol=1e-12
    )
