"""Inner products, norms and combinations of long vectors; those of float32 are summed in float64, band by band."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Generator, Tensor

# The least entries of a band, and the largest number of bands.
_BAND = 2**16
_BANDS = 64
# Entries whose products are summed in float32: their rounding is below that of the
# stored entries.
_SINGLE = 2**12
_ALONE = 2**7  # the same for norms, whose terms all have one sign
# Of a rotation on the CPU: numbers of a band, 1 MB in float64, which fits into the caches,
# and the fewest entries of each row.
_CACHED = 2**17
_SHORTEST = 2**11
Rows = Float[Tensor, "p n"] | Sequence[Float[Tensor, " n"]]


def is_short(vectors: Rows) -> bool:
    """Whether vectors are in float64, in which whole copies are affordable."""
    return not len(vectors) or vectors[0].dtype == torch.float64


def bands(dim: int) -> Iterator[slice]:
    """Yield slices that cover `dim` entries; a band of a few vectors takes less memory than one whole vector.

    A band has max(2^16, dim / 64) entries: at most 64 bands, so that Python's overhead is
    small, and p vectors cast to float64 take 2 p / 64 of a vector in float32.
    """
    size = max(_BAND, -(-dim // _BANDS))
    yield from (slice(low, low + size) for low in range(0, dim, size))


def _in_band(rows: Rows, band: slice) -> Float[Tensor, "p band"]:
    """Return the entries of all rows in a band, in float64."""
    return torch.stack([row[band] for row in rows]).double()


def dots(rows: Tensor, others: Tensor) -> Tensor:
    """Return rows @ others in float64, on the CPU; `rows` is (n,) or (p, n), `others` is (n,) or (n, q).

    Entries in float32 on the CPU are summed in float32 over short pieces, and the sums
    in float64: no copy of a basis is made. On a card, where float32 may mean fewer
    digits, every entry is cast.

    A sum of m products in float32 is off by at most m u sum |x_i y_i|: with m = _SINGLE the
    pieces have the error of sums 2^12 long, whatever the length of the vectors.
    """
    if others.dtype == torch.float64:
        return (rows @ others).cpu()
    sums = []
    if others.device.type == "cpu":
        pieces = zip(rows.split(_SINGLE, dim=-1), others.split(_SINGLE), strict=True)
        for piece, other in pieces:
            sums.append(piece @ other)
        return torch.stack(sums).double().sum(dim=0)
    for band in bands(len(others)):
        sums.append(rows[..., band].double() @ others[band].double())
    return torch.stack(sums).sum(dim=0).cpu()


def length(vector: Float[Tensor, " n"]) -> float:
    """Return the Euclidean norm.

    In float32 on the CPU, |v|^2 is the sum of the squared norms of short pieces, which
    are added in float64.

    Examples
    --------
    >>> import torch
    >>> length(torch.tensor([3.0, 4.0]))
    5.0
    """
    if vector.dtype == torch.float64:
        return float(vector.norm())
    if vector.device.type != "cpu":
        return float(dots(vector, vector).sqrt())
    whole = len(vector) // _ALONE * _ALONE
    pieces = vector[:whole].reshape(-1, _ALONE).norm(dim=1)
    rest = vector[whole:].norm()
    return math.hypot(float(pieces.double().norm()), float(rest))


def divided(vector: Float[Tensor, " n"], size: float) -> Float[Tensor, " n"]:
    """Return vector / size. A vector in float32 is overwritten."""
    if vector.dtype == torch.float64:
        return vector / size
    return vector.div_(size)


def without(
    vector: Float[Tensor, " n"], rows: Tensor, overlaps: Tensor
) -> Float[Tensor, " n"]:
    """Return vector - rows^T overlaps, for one row (n,) or several (p, n). A vector in float32 is overwritten.

    With the overlaps rows @ vector it is one step of Gram-Schmidt: the component
    orthogonal to orthonormal rows.

    x - R^T (R x) for orthonormal rows R. Overlaps that are off by d leave a component of d
    along the rows: Gram-Schmidt is repeated where that matters (LanczosRun).

    Examples
    --------
    >>> import torch
    >>> vector, row = torch.tensor([3.0, 4.0]).double(), torch.tensor([1.0, 0.0]).double()
    >>> without(vector, row, dots(row, vector)).tolist()
    [0.0, 4.0]
    """
    if vector.dtype == torch.float64:
        weights = overlaps.to(vector.device)
        if rows.ndim == 1:
            return vector - weights * rows
        return vector - rows.T @ weights
    matrix = rows.reshape(-1, len(vector)).T
    return vector.addmv_(matrix, overlaps.reshape(-1).to(vector), alpha=-1)


def rotate(basis: Float[Tensor, "p n"], coefficients: Float[Tensor, "j k"]) -> None:
    """Replace the first k rows of `basis` by combinations of its first j rows, band by band, in place.

    Row i becomes sum_l coefficients[l, i] row_l, for i < k. With orthonormal coefficients
    the rows stay orthonormal. Each band is cast to float64, combined and cast back. Every
    sum is over rows, so that the length of a band does not change it; on the CPU, bands fit
    into the caches.
    """
    before, after = coefficients.shape
    dim = basis.shape[1]
    weights = coefficients.T.to(basis.device)
    slices = bands(dim)
    if basis.device.type == "cpu":
        size = max(_SHORTEST, _CACHED // max(before, 1))
        slices = (slice(low, low + size) for low in range(0, dim, size))
    for band in slices:
        combined = weights @ basis[:before, band].double()
        basis[:after, band] = combined.to(basis)


def grams(
    rows: Rows, images: Rows
) -> tuple[Float[Tensor, "p p"], Float[Tensor, "p p"]]:
    """Return V V^T and V P^T in float64 on the CPU, for the rows of V and of P.

    Parameters
    ----------
    rows, images : tensors (p, n), or sequences of p vectors
        V and P = V A: row i of P is A times row i of V, for a symmetric A.
    """
    size = (2, len(rows), len(rows))
    sums = torch.zeros(size, dtype=torch.float64, device=rows[0].device)
    for band in bands(len(rows[0])):
        vectors = _in_band(rows, band)
        products = _in_band(images, band)
        sums += torch.stack([vectors @ vectors.T, vectors @ products.T])
    gram, product = sums.cpu()
    return gram, product


def residuals(
    rows: Rows, images: Rows, weights: Float[Tensor, "p k"], values: Float[Tensor, " k"]
) -> Float[Tensor, " k"]:
    """Return ||A v - value v|| for the combinations v of `rows`, whose products with A are `images`.

    Column j of `weights` has the coefficients of v_j in the rows V; A v_j is the same
    combination of the images. Squares are added band by band in float64, and neither v nor
    A v is formed as a whole.

    Examples
    --------
    For A = diag(1, 2), twice the second unit vector with the value 1.5 is off by 2 |2 - 1.5|:

    >>> import torch
    >>> from hessfig.curvature.spectral.vectors import residuals
    >>> rows, images = torch.eye(2).double(), torch.tensor([1.0, 2.0]).double().diag()
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
    >>> residuals(rows, images, weights, torch.tensor([1.0, 1.5]).double()).tolist()
    [0.0, 1.0]
    """
    weights = weights.to(rows[0].device)
    values = values.to(rows[0].device)
    squares = torch.zeros_like(values)
    for band in bands(len(rows[0])):
        vectors = weights.T @ _in_band(rows, band)
        products = weights.T @ _in_band(images, band)
        squares += (products - values[:, None] * vectors).square().sum(dim=1)
    return squares.sqrt().cpu()


def combined(rows: Rows, weights: Float[Tensor, "p k"]) -> Float[Tensor, "n k"]:
    """Return combinations of `rows` in their type."""
    like = rows[0]
    whole = like.new_empty(weights.shape[1], len(like))
    for band in bands(len(like)):
        here = _in_band(rows, band)
        whole[:, band] = (weights.T.to(here.device) @ here).to(whole)
    return whole.T


def drawn(like: Tensor, dim: int, generator: Generator) -> Float[Tensor, " n"]:
    """Return a normal vector of the type and on the device of `like`; drawn on the CPU, equal on every device."""
    if like.dtype == torch.float64:
        return _normal(dim, generator).to(like.device)
    vector = like.new_empty(dim)
    for low in range(0, dim, _BAND):
        piece = vector[low : low + _BAND]
        piece.copy_(_normal(len(piece), generator))
    return vector


def _normal(dim: int, generator: Generator) -> Float[Tensor, " n"]:
    return torch.randn(dim, dtype=torch.float64, generator=generator, device="cpu")
