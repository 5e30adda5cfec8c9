"""Inner products, norms and combinations of long vectors; those of float32 are summed in float64, band by band."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Generator, Tensor

# The least entries of a band, and the largest number of bands.
_BAND, _BANDS = (2**16, 64)
# Entries whose products are summed in float32: their rounding is below that of the
# stored entries.
_SINGLE = 2**12
_ALONE = 2**7  # the same for norms, whose terms all have one sign
Rows = Float[Tensor, "p n"] | Sequence[Float[Tensor, " n"]]


def is_short(vectors: Rows) -> bool:
    """Whether vectors are in float64, in which whole copies are affordable."""
    return not len(vectors) or vectors[0].dtype == torch.float64


def bands(dim: int) -> Iterator[slice]:
    """Yield slices that cover `dim` entries; a band of a few vectors takes less memory than one whole vector."""
    size = max(_BAND, -(-dim // _BANDS))
    yield from (slice(low, low + size) for low in range(0, dim, size))


def dots(rows: Tensor, others: Tensor) -> Tensor:
    """Return rows @ others in float64, on the CPU; `rows` is (n,) or (p, n), `others` is (n,) or (n, q).

    Entries in float32 on the CPU are summed in float32 over short pieces, and the sums
    in float64: no copy of a basis is made. On a card, where float32 may mean fewer
    digits, every entry is cast.
    """
    if others.dtype == torch.float64:
        return (rows @ others).cpu()
    if others.device.type == "cpu":
        pieces = zip(rows.split(_SINGLE, dim=-1), others.split(_SINGLE), strict=True)
        return torch.stack([one @ other for one, other in pieces]).double().sum(dim=0)
    sums = [
        rows[..., band].double() @ others[band].double() for band in bands(len(others))
    ]
    return torch.stack(sums).sum(dim=0).cpu()


def length(vector: Float[Tensor, " n"]) -> float:
    """Return the Euclidean norm."""
    if vector.dtype == torch.float64:
        return float(vector.norm())
    if vector.device.type == "cpu":
        whole = len(vector) // _ALONE * _ALONE
        pieces, rest = vector[:whole].reshape(-1, _ALONE), vector[whole:]
        return math.hypot(float(pieces.norm(dim=1).double().norm()), float(rest.norm()))
    return float(dots(vector, vector).sqrt())


def divided(vector: Float[Tensor, " n"], size: float) -> Float[Tensor, " n"]:
    """Return vector / size. A vector in float32 is overwritten."""
    return vector / size if vector.dtype == torch.float64 else vector.div_(size)


def without(
    vector: Float[Tensor, " n"], rows: Tensor, overlaps: Tensor
) -> Float[Tensor, " n"]:
    """Return vector - rows^T overlaps, for one row (n,) or several (p, n). A vector in float32 is overwritten."""
    if vector.dtype == torch.float64:
        weights = overlaps.to(vector.device)
        return vector - (weights * rows if rows.ndim == 1 else rows.T @ weights)
    return vector.addmv_(
        rows.reshape(-1, len(vector)).T, overlaps.reshape(-1).to(vector), alpha=-1
    )


def rotate(basis: Float[Tensor, "p n"], coefficients: Float[Tensor, "j k"]) -> None:
    """Replace the first k rows of `basis` by combinations of its first j rows."""
    (before, after), weights = coefficients.shape, coefficients.T.to(basis.device)
    for band in bands(basis.shape[1]):
        basis[:after, band] = (weights @ basis[:before, band].double()).to(basis)


def grams(
    rows: Rows, images: Rows
) -> tuple[Float[Tensor, "p p"], Float[Tensor, "p p"]]:
    """Return V V^T and V P^T in float64 on the CPU, for the rows of V and of P."""
    size = (2, len(rows), len(rows))
    sums = torch.zeros(size, dtype=torch.float64, device=rows[0].device)
    for band in bands(len(rows[0])):
        vectors, products = (
            torch.stack([row[band] for row in every]).double()
            for every in (rows, images)
        )
        sums += torch.stack([vectors @ vectors.T, vectors @ products.T])
    gram, product = sums.cpu()
    return gram, product


def residuals(
    rows: Rows, images: Rows, weights: Float[Tensor, "p k"], values: Float[Tensor, " k"]
) -> Float[Tensor, " k"]:
    """Return ||A v - value v|| for the combinations v of `rows`, whose products with A are `images`."""
    weights, values = (one.to(rows[0].device) for one in (weights, values))
    squares = torch.zeros_like(values)
    for band in bands(len(rows[0])):
        vectors, products = (
            torch.stack([row[band] for row in every]).double()
            for every in (rows, images)
        )
        squares += (
            (weights.T @ products - values[:, None] * (weights.T @ vectors))
            .square()
            .sum(dim=1)
        )
    return squares.sqrt().cpu()


def combined(rows: Rows, weights: Float[Tensor, "p k"]) -> Float[Tensor, "n k"]:
    """Return combinations of `rows` in their type."""
    whole = torch.empty(
        weights.shape[1], len(rows[0]), dtype=rows[0].dtype, device=rows[0].device
    )
    for band in bands(len(rows[0])):
        here = torch.stack([row[band] for row in rows]).double()
        whole[:, band] = (weights.T.to(here.device) @ here).to(whole)
    return whole.T


def drawn(like: Tensor, dim: int, generator: Generator) -> Float[Tensor, " n"]:
    """Return a normal vector of the type and on the device of `like`; drawn on the CPU, equal on every device."""
    if like.dtype == torch.float64:
        return torch.randn(
            dim, dtype=torch.float64, generator=generator, device="cpu"
        ).to(like.device)
    vector = torch.empty(dim, dtype=like.dtype, device=like.device)
    for low in range(0, dim, _BAND):
        piece = vector[low : low + _BAND]
        piece.copy_(
            torch.randn(
                len(piece), dtype=torch.float64, generator=generator, device="cpu"
            )
        )
    return vector
