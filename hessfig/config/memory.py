"""A bound on what dense blocks may take: known from the settings, so checked before anything is measured."""

from __future__ import annotations

from hessfig.config.blocks import matrices_of, weight_pairs, weight_size
from hessfig.config.choices import DType, Method
from hessfig.config.schema import Config, with_defaults
from hessfig.errors import UserError
from hessfig.terms import Matrix

BOUND = 8e9
_COPIES = 4  # H_o and H_f, each once more while its columns are put together


def check_memory(config: Config) -> None:
    """Raise UserError where dense blocks, or the whole Hessian a sweep keeps, would take more than BOUND bytes."""
    if config.estimator.method == Method.dense:
        column, entries = max(_columns(config).items(), key=lambda item: item[1])
        _check("estimator=dense", f"the column of blocks of {column}", _bytes(config, entries))
    if config.sweep.keep_dense:
        number = _parameters(config)
        _check("sweep.keep_dense", f"the Hessian of {number} parameters", _bytes(config, number**2))


def _check(key: str, what: str, size: float) -> None:
    if size > BOUND:
        raise UserError(
            f"{key}: {what} would take {size / 1e9:.1f} GB of memory in each worker",
            got=f"{size / 1e9:.1f} GB",
            allowed=f"at most {BOUND / 1e9:g} GB",
            remedy=_REMEDIES[key],
        )


def _columns(config: Config) -> dict[Matrix, int]:
    """Return the entries of all the blocks of each column, which are held together."""
    entries: dict[Matrix, int] = {}
    for row, col in weight_pairs(config.blocks, config.model):
        size = weight_size(row, config.model, config.task) * weight_size(col, config.model, config.task)
        entries[col] = entries.get(col, 0) + size
    return entries


def _parameters(config: Config) -> int:
    model = with_defaults(config.model)
    sizes = {matrix: weight_size(matrix, model, config.task) for matrix in matrices_of(model)}
    return sum(size * (model.n_layers if matrix.has_layer else 1) for matrix, size in sizes.items())


def _bytes(config: Config, entries: int) -> float:
    return float(_COPIES * entries * (8 if config.dtype == DType.float64 else 4))


_REMEDIES = {
    "estimator=dense": "estimator=auto (exact where that is cheap, probes elsewhere), or a smaller model.d_model",
    "sweep.keep_dense": "a smaller model.d_model, or sweep.keep_dense=false with estimator=auto",
}
