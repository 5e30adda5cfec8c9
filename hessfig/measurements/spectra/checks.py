"""Settings under which no spectrum can be had: found before anything is measured."""

from __future__ import annotations

from hessfig.config import Config
from hessfig.errors import UserError
from hessfig.measurements.spectra.settings import diagonal
from hessfig.models.protocol import Layout
from hessfig.terms import Part

MATRIX_BYTES = 1.2e9  # of all matrices of a block at once: two of 8 192 rows, or one of 12 247


def is_diagonal(block: object) -> bool:
    """Whether a block has a spectrum: a pair of different weights has none."""
    return bool(getattr(block, "is_diagonal", False))


def check_count(config: Config, layout: Layout) -> None:
    """Raise UserError when a block has fewer eigenvalues than are asked for at an end."""
    sizes = {str(block): layout.size(block.layer, block.col) for block in diagonal(config, layout)}
    for block, size in sizes.items():
        if config.spectrum.k > size:
            raise UserError(
                f"spectrum.k: block {block} has fewer eigenvalues",
                got=config.spectrum.k,
                allowed=f"a whole number from 1 to {min(sizes.values())}",
                remedy=f"spectrum.k={min(sizes.values())}",
            )


def check_dense(config: Config, layout: Layout) -> None:
    """Raise UserError for a block whose matrices would exceed MATRIX_BYTES in a worker."""
    check_count(config, layout)
    for block in diagonal(config, layout):
        size = layout.size(block.layer, block.col)
        needed = 8 * size**2 * matrices(config.parts)
        if needed > MATRIX_BYTES:
            most = int((MATRIX_BYTES / (8 * matrices(config.parts))) ** 0.5)
            raise UserError(
                f"quantities=[spectrum]: all eigenvalues of block {block}, {size} parameters, would take "
                f"{needed / 1e9:.1f} GB of memory in each worker",
                got=f"{needed / 1e9:.1f} GB for parts=[{','.join(config.parts)}]",
                allowed=f"at most {MATRIX_BYTES / 1e9:g} GB: blocks of at most {most} parameters",
                remedy="quantities=[density,largest_eigenvalue,smallest_eigenvalue], which need products alone",
            )


def matrices(parts: list[Part]) -> int:
    """Return how many matrices are held at once: H beside H_o and H_f is their sum, and has none of its own."""
    return min(len(parts), 2)
