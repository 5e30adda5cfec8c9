"""The Python interface: blocks of the Hessian of anybody's network, by the engines of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hessfig.config import (
    Config,
    Data,
    DType,
    EstimatorConfig,
    Kind,
    Method,
    ModelConfig,
    Probes,
    SpectrumConfig,
    TaskConfig,
)
from hessfig.errors import UserError, did_you_mean
from hessfig.measurements.blocks import check_served
from hessfig.measurements.protocol import At, Measured, Request
from hessfig.measurements.registry import quantity
from hessfig.models.blocks import blocks_of
from hessfig.record import COLUMNS
from hessfig.terms import Block, Part

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from hessfig.models.protocol import Drawn

    Spec = str | tuple[str, Any] | list[Any]

_MODEL = ModelConfig(kind=Kind.python)


@dataclass(frozen=True)
class Problem:
    """The loss of a network on data: what is differentiated twice.

    network   any torch.nn.Module that maps one tensor of inputs to one tensor of outputs, in evaluation mode
    inputs    a tensor (samples first), or a list of tensors: batches, weighted by their size
    targets   a tensor, or a list of as many
    loss      "cross_entropy" (outputs (..., classes), targets (...)), "mse", "mse_sum", or a module
              loss(outputs, targets) with `reduction` "mean" or "sum"
    weights   {name: parameter name, (parameter name, index) for a view of it, or a list of these for a group}; a name
              may carry its layer: "W_V@2". Left out: every parameter by its own name.
    """

    network: nn.Module
    inputs: Tensor | Sequence[Tensor]
    targets: Tensor | Sequence[Tensor]
    loss: str | nn.Module = "cross_entropy"
    weights: Mapping[str, Spec] | None = field(default=None)

    def drawn(self, dtype: str) -> Drawn:
        """Return the checked problem in `dtype`; the network is copied when it has another type.

        Raises UserError for what does not fit: names, slices, shapes, training mode, random outputs.
        """
        from hessfig.models.python.foreign import foreign

        return foreign(self.network, self.inputs, self.targets, self.loss, self.weights, dtype=dtype)


def measure(
    problem: Problem,
    *,
    blocks: str | Sequence[Any] = "each",
    parts: Sequence[str] = ("H", "H_o", "H_f"),
    quantities: Sequence[str] = ("frobenius",),
    estimator: str = "auto",
    num_probes: int = 20,
    spectrum: Mapping[str, Any] | None = None,
    seed: int = 0,
    dtype: str = "float64",
    device: str = "cpu",
) -> pd.DataFrame:
    """Return a table with the columns of hessfig.record.COLUMNS, one row a measured number; nothing is written.

    `blocks`: "each" (every weight's diagonal block), "all" (every pair), or a list of names, groups and pairs:
    ["W_V", ("W_Q", "W_V"), "all"], where the name "all" is the whole network. H = H_o + H_f, the Gauss-Newton part and
    the functional part (eq. 2). A trace is measured for the diagonal blocks among them. `estimator`: auto (dense where
    a weight has no more than `num_probes` entries, else Rademacher probes), hutchinson, or dense. `spectrum` holds the
    settings of eigenvalues and densities (hessfig.config.SpectrumConfig): {"k": 3, "steps": 80}. The same seed gives
    the same bits, here and on the command line. Arrays of a quantity are in `table.attrs["arrays"]`, by its name.

    Raises UserError for what cannot be measured. Warns where curvlinops' products are wrong and a slower route is
    taken (networks with LayerNorm: see docs/own-model.md).
    """
    import torch

    from hessfig.curvature.problem import Problem as Measurable

    config = _config(blocks, parts, quantities, estimator, num_probes, spectrum or {}, seed, dtype)
    drawn = problem.drawn(config.dtype)
    blocks_there = blocks_of(config.blocks, drawn.layout, config.model)
    check_served([quantity(name) for name in quantities], blocks_there)
    for name in quantities:
        quantity(name).check(config, drawn.layout)
    measurable = Measurable.of(drawn).to(torch.device(device))
    found = {
        name: quantity(name).measure(measurable, _request(config, blocks_there, name)) for name in quantities
    }
    return _frame(found, seed)


def _config(
    blocks: Any,
    parts: Sequence[str],
    quantities: Sequence[str],
    estimator: str,
    num_probes: int,
    spectrum: Mapping[str, Any],
    seed: int,
    dtype: str,
) -> Config:
    from hessfig.config.checks import check

    config = Config(
        task=TaskConfig(data=Data.python),
        model=_MODEL,
        estimator=EstimatorConfig(
            method=Method(_one_of("estimator", estimator, list(Method))), num_probes=num_probes
        ),
        spectrum=_spectrum(spectrum),
        blocks=blocks if isinstance(blocks, str) else [_entry(entry) for entry in blocks],
        parts=[Part(_one_of("parts", part, list(Part))) for part in parts],
        quantities=list(quantities),
        first_seed=seed,
        seeds=1,
        dtype=DType(_one_of("dtype", dtype, list(DType))),
    )
    check(config)
    return config


def _spectrum(given: Mapping[str, Any]) -> SpectrumConfig:
    known = vars(SpectrumConfig())
    for key, value in given.items():
        _one_of("spectrum", key, list(known))
        kinds = (int, float) if type(known[key]) is float else type(known[key])
        if key == "probes":
            _one_of("spectrum.probes", value, list(Probes))
        elif isinstance(value, bool) or not isinstance(value, kinds):
            raise UserError(
                f"spectrum.{key} is of another kind",
                got=repr(value),
                allowed="a number" if type(known[key]) is float else "a whole number",
                remedy=f"for example spectrum={{{key!r}: {known[key]}}}",
            )
    return SpectrumConfig(**{**given, **({"probes": Probes(given["probes"])} if "probes" in given else {})})


def _entry(entry: Any) -> Any:
    return list(entry) if isinstance(entry, tuple) else entry


def _one_of(key: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise UserError(f"{key}: there is no such choice", got=value, allowed=", ".join(choices), remedy=hint)
    return value


def _request(config: Config, blocks: Sequence[Block], name: str) -> Request:
    from hessfig.sweep.measure import probe_stream

    return Request(
        blocks=[block for block in blocks if quantity(name).serves(block)],
        parts=config.parts,
        estimator=config.estimator,
        model=config.model,
        dtype=config.dtype,
        stream=partial(probe_stream, config.first_seed, name, None),
        at=At(config, seed=config.first_seed),
        spectrum=config.spectrum,
    )


def _frame(found: Mapping[str, Measured], seed: int) -> pd.DataFrame:
    import pandas as pd

    shared = {"sweep": "", "variant": "", "num_layers": 0, "seed": seed}
    rows = [{**shared, **row} for measured in found.values() for row in measured.rows]
    frame = pd.DataFrame(rows, columns=[name for name in COLUMNS if name not in ("seconds", "config")])
    frame = frame.astype({"value": float, "error": float, "sigma": float, "step": float})
    frame.attrs["arrays"] = {name: measured.arrays for name, measured in found.items() if measured.arrays}
    return frame
