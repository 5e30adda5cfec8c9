"""The Python interface: blocks of the Hessian of any network, with the engines of the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hessfig.arguments import Measure, Spec, device_of, one_of, whole
from hessfig.config.enums import DType
from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few, plain
from hessfig.measurements.catalogue import MAY_BE_UNDEFINED, quantity
from hessfig.measurements.quantity import At, Measured, asked_of, check_served
from hessfig.measurements.requirements import check_parts
from hessfig.models.blocks import blocks_of
from hessfig.record import COLUMNS, Status
from hessfig.terms import OF_THE_BLOCK, Approximation, Block, Part
from hessfig.weights import Layout

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from hessfig.config.of_quantities import ApproximationConfig
    from hessfig.curvature.approximations.approximated_block import ApproximatedBlock
    from hessfig.curvature.block_operator import BlockOperator
    from hessfig.curvature.problem import Objective, Witness


_OF_ZERO = " (of a block that is zero these are not defined)"


@dataclass(frozen=True)
class Problem:
    """The loss of a network on data: the function whose Hessian is measured.

    network   any torch.nn.Module, in evaluation mode. A TransformerBridge takes tokens (samples, length) alone: each is
              to predict the next one, and weights=None means "found" (docs/transformer-lens.md)
    inputs    a tensor (samples first), a tuple of several inputs, or a dictionary of arguments; a list, DataLoader or
              iterable of these, or of (inputs, targets) pairs, is several batches, whose loss is that on all samples.
              Loaders and iterables are read once, here, and kept; their generators stay as they were
    targets   a tensor, or a list of one tensor per batch; classes of -100 are ignored, as in torch. None: the second of
              a pair, or the entry `labels` of a dictionary; a name: that entry of a dictionary
    loss      "cross_entropy" (outputs (..., classes), targets (...)), "mse", "mse_sum", a function loss(outputs,
              targets), or a module with `reduction` "mean" or "sum"; it returns a tensor of shape (). None: the loss
              that the network itself returns for its labels (as models of transformers do); without one,
              cross_entropy of outputs and targets, but for the entry `labels` of a dictionary, which needs a loss
    weights   {name: parameter name, (parameter name, index) for a view of it or ("emb.weight", [0, 2, 5]) for some of
              its rows, or a list or tuple of these for a group}; a name may give its layer: "W_V@2". A group holds
              each entry once. None: every parameter by its own name, frozen ones too (a Monitor's default is
              "trainable"); "trainable": the parameters that require a gradient (LoRA); the others are constants.
              "found", or what hessfig.find_weights returns: those of a transformer by what they do, W_Q to W_out of
              each layer
    outputs   the name (or index) of the output that the loss takes, if the network returns several tensors

    Each batch has the weight that its mean divides by: the number of samples or numbers, or the class weights of the
    targets that are not ignored. A loss of another type is evaluated on all outputs joined, and refused if it is not
    such a mean. hessfig.measure raises UserError for arguments that do not fit, and this does for batches without end.
    """

    network: nn.Module
    inputs: Any
    targets: Any = None
    loss: str | nn.Module | Callable[[Any, Tensor], Tensor] | None = None
    weights: Mapping[str, Spec] | Layout | str | None = field(default=None)
    outputs: str | int | None = None

    def __post_init__(self) -> None:
        """Read a loader or an iterable, once: every measurement is of the same batches."""
        from hessfig.models.own.batches import keep_batches

        for name in ("inputs", "targets"):
            object.__setattr__(self, name, keep_batches(getattr(self, name), name))

    def objective(self, dtype: str) -> Objective:
        """Return the checked problem in `dtype`: a copy, which has the derivatives of the user's own function.

        Raises UserError for what does not fit: names, slices, shapes, training mode, random outputs; and for a function
        that cannot be measured as it is.
        """
        from hessfig.models.own.border import open_request
        from hessfig.models.own.witnessing import witnessed

        real = one_of("dtype", dtype, DType)
        asked = open_request(self.network, self.inputs, self.targets, self.loss, self.weights, self.outputs)
        return witnessed(asked, real)

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {value}" for name, value in self._facts().items())
        return f"Problem of {type(self.network).__name__} ({facts})"

    def operator(
        self,
        block: str | Sequence[str],
        part: str = "H",
        *,
        dtype: str = "float64",
        device: str = "cpu",
        products: str = "auto",
    ) -> BlockOperator:
        """Return one block of H, H_o or H_f as an operator, by the products of hessfig.measure.

        Parameters
        ----------
        block : str or (row, column)
            One weight, group or pair as in hessfig.measure: "W_V@2", ("W_Q", "W_V"), "all" for the whole network.
        part : str
            "H", "H_o" or "H_f".
        dtype, device : str
            Of the products.
        products : str
            "auto", "curvlinops", or "differences" of gradients, for what has no double backward (hessfig.Measure).

        Returns
        -------
        hessfig.curvature.BlockOperator
            It holds copies of network and data, so that it stays what it is when a training goes on.

        Raises
        ------
        UserError
            For a block or part that there is not, and for names that stand for several blocks.
        """
        from hessfig.curvature.block_operator import BlockOperator
        from hessfig.models.routes import Engines

        config, problem, one = self._single(block, part, ["frobenius"], dtype, device, products=products)
        engines = Engines(problem, config.model, config.estimator.products)
        return BlockOperator(problem, one, config.parts[0], lambda of: engines.column(of.layer, of.col, [of]))

    def approximation(
        self, name: str, block: str, part: str = "H", *, rank: int = 3, seed: int = 0
    ) -> ApproximatedBlock:
        """Return an approximation of a diagonal block as an operator: K-FAC, Shampoo, a Fisher matrix and others.

        Parameters
        ----------
        name : str
            One of hessfig.terms.Approximation (docs/approximations.md).
        block : str
            A weight, or "all", as in `operator`.
        part : str
            What is approximated by those that are made from the block itself (diagonal, soap, kfoc, kronecker_sum,
            block_diagonal, layer_diagonal); the others are what they are.
        rank : int
            Kronecker products in kronecker_sum.
        seed : int
            Of the labels that sampled_fisher draws.

        Returns
        -------
        hessfig.curvature.ApproximatedBlock

        Raises
        ------
        UserError
            For a name that the block cannot have.
        """
        from hessfig.config.of_quantities import ApproximationConfig
        from hessfig.curvature.approximations.approximated_block import ApproximatedBlock
        from hessfig.curvature.batched import undisturbed
        from hessfig.curvature.block_operator import Entries
        from hessfig.measurements.approximations import approximation_of

        names = [Approximation(one_of("name", name, Approximation))]
        chosen = ApproximationConfig(names=names, rank=whole("rank", rank, least=1, most=64, example=3))
        config, problem, one = self._single(block, part, ["approximations"], "float64", "cpu", chosen, seed)
        request = asked_of(quantity("approximations"), [one], At(config, seed=config.first_seed))
        with undisturbed(problem):
            product = approximation_of(problem, request)
        return ApproximatedBlock(name, one, product, Entries(problem, one.layer, one.col))

    def _single(
        self,
        block: Any,
        part: str,
        quantities: list[str],
        dtype: str,
        device: str,
        chosen: ApproximationConfig | None = None,
        seed: int = 0,
        products: str = "auto",
    ) -> tuple[Config, Objective, Block]:
        """Return settings, a copy of the problem, and the one block that is named. Raises UserError for several."""
        from hessfig.curvature.double_backward import differentiating

        entry = [tuple(block) if isinstance(block, list) else block]
        is_dense = chosen is not None and {*chosen.names} & {*OF_THE_BLOCK}
        method = "dense" if is_dense else "auto"
        config = Measure(entry, [part], quantities, method, seed=seed, dtype=dtype, products=products).config()
        config = config if chosen is None else replace(config, approximation=chosen)
        place = device_of(device)
        with differentiating():
            problem = self.objective(config.dtype).on(place)
            config = with_parts(config, problem, part)
            found = blocks_asked(config, problem.layout)
        if len(found) > 1:
            raise UserError(
                "operator: this name matches several blocks",
                got=plain(repr(block)),
                allowed=first_few([f"{one.col}@{one.layer}" for one in found]),
                remedy=f"for example {found[-1].col}@{found[-1].layer}",
            )
        return config, problem, found[0]

    def _repr_html_(self) -> str:
        from hessfig.analysis.presented import described_html

        return described_html(f"Problem of {type(self.network).__name__}", self._facts())

    def _facts(self) -> dict[str, Any]:
        """Return what a problem says of itself in print: its size, its loss and its weights, no tensors."""
        named = self.weights.names if isinstance(self.weights, Layout) else self.weights
        weights = named if isinstance(named, str) else ", ".join(named or ()) or "every parameter"
        loss = self.loss or "the network's own, else cross_entropy"
        return {
            "parameters": sum(parameter.numel() for parameter in self.network.parameters()),
            "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__),
            "weights": weights,
        }


def measure(
    problem: Problem,
    *,
    blocks: str | Sequence[Any] = "each",
    parts: str | Sequence[str] | None = None,
    quantities: str | Sequence[str] = ("frobenius",),
    estimator: str = "auto",
    num_probes: int = 20,
    spectrum: Mapping[str, Any] | None = None,
    directions: Mapping[str, Any] | None = None,
    seed: int = 0,
    dtype: str = "float64",
    device: str = "cpu",
    products: str = "auto",
) -> pd.DataFrame:
    """Measure blocks of the Hessian of a problem and return a table; nothing is written.

    problem     a hessfig.Problem
    blocks      "each" (the diagonal block of every weight), "all" (every pair of weights), one name, or a list of
                names, groups and (row, column) pairs; in a list the name "all" is the whole network, and a pattern
                (`"*.attn.*"`) every weight that it matches
    parts       "H", "H_o" (Gauss-Newton part), "H_f" (functional part; H = H_o + H_f, eq. 2), or a list. None: all
                three if the loss is convex in the network's outputs, else H alone
    quantities  a name or a list of names from hessfig.measurements.catalogue; a trace has diagonal blocks only
    estimator   "auto" (exact by a formula where that is cheap, dense where a column of a small network has at most 256
                entries, else by probes; docs/accuracy.md), "hutchinson", "aligned", "xtrace" or "dense"
    num_probes  random vectors per column of blocks
    spectrum    settings of eigenvalues and densities, as in config.science.SpectrumConfig: {"k": 3, "steps": 80}
    directions  settings of the quantity along (docs/along.md): {"named": ["update"], "rules": ["adamw", "muon"]}
    seed        of all random vectors; equal seeds give equal bits, here and on the command line
    dtype, device   of the computation: "float64" or "float32"; "cpu", "cuda" or "cuda:N"

    products    "auto", "curvlinops", or "differences" of gradients: for what has no double backward, norms alone

    The table is a pandas.DataFrame with the columns of hessfig.record.COLUMNS (docs/table.md) and one row per measured
    number. The arrays of a quantity are in `table.attrs["arrays"]` under its name. A network of at most 65536
    parameters is measured on one thread, because more threads are slower; the number of threads of torch is restored.

    Raises UserError, which is a ValueError, for what cannot be measured. Warns if curvlinops' products are wrong or
    cannot be computed and a slower route is used (large networks with LayerNorm or SiLU: see docs/own-model.md), if
    no parameter reaches the outputs, and if numbers are not finite: these have the status `nonfinite` and error nan.
    """
    from hessfig.curvature.batched import undisturbed
    from hessfig.curvature.double_backward import differentiating

    if not isinstance(problem, Problem):
        raise UserError(
            "measure: the problem is of another kind",
            got=type(problem).__name__,
            allowed="a hessfig.Problem",
            remedy="hessfig.measure(hessfig.Problem(network, inputs, targets))",
        )
    place = device_of(device)
    further: dict[str, Any] = {"directions": directions, "products": products}
    wanted = Measure(blocks, parts, quantities, estimator, num_probes, spectrum, seed, dtype, **further)
    config = wanted.config()
    names = config.quantities
    with differentiating():
        found_problem = problem.objective(config.dtype)  # refuses what is no network
        with undisturbed(found_problem):
            config = with_parts(config, found_problem, parts)
            blocks_there = blocks_asked(config, found_problem.layout)
            measurable = found_problem.on(place)
            at = At(config, seed=config.first_seed)
            asked = {name: asked_of(quantity(name), blocks_there, at) for name in names}
            found = {name: quantity(name).measured(measurable, request) for name, request in asked.items()}
    return _frame(found, config.first_seed, found_problem.witness)


def with_parts(config: Config, problem: Objective, asked: Any) -> Config:
    """Return the settings with the parts that exist: H alone if the loss is not convex in the declared outputs.

    Raises UserError, with the reason, if another part was requested.
    """
    from hessfig.curvature.loss_convexity import why_no_split

    why = why_no_split(problem) if set(config.parts) - {Part.H} else ""
    if why and asked is not None:
        raise UserError(
            f"parts: H_o and H_f are not defined here: {why}",
            got=plain(repr(asked)),
            allowed="H",
            remedy="parts='H', or declare outputs in which the loss is convex: loss=..., outputs='NAME'",
        )
    return replace(config, parts=[Part.H]) if why else config


def blocks_asked(config: Config, layout: Layout, *, is_followed: bool = False) -> list[Block]:
    """Return the blocks that settings ask of a network of the user's own.

    Raises UserError for what cannot be measured; where a training `is_followed`, its caller checks the optimiser.
    """
    asked, found = [quantity(name) for name in config.quantities], blocks_of(config.blocks, layout, config.model)
    check_served(asked, found)
    check_parts(config, found)
    for one in asked:
        if not (is_followed and one.needs_optimiser):
            one.check_settings(config, layout)
    return found


def _frame(found: Mapping[str, Measured], seed: int, witness: Witness | None) -> pd.DataFrame:
    import pandas as pd

    from hessfig.analysis.presented import Table

    shared = {"sweep": "", "variant": "", "num_layers": 0, "seed": seed}
    rows = [{**shared, **row} for measured in found.values() for row in measured.rows]
    frame = pd.DataFrame(rows, columns=[name for name in COLUMNS if name not in ("seconds", "config")])
    frame = frame.astype({"value": float, "error": float, "sigma": float, "step": float})
    lost = frame[frame["status"] == Status.nonfinite]
    if len(lost) < len(frame):  # where nothing is finite, something is wrong
        lost = lost[~lost["quantity"].isin(MAY_BE_UNDEFINED)]
    if len(lost):
        names = first_few(list(dict.fromkeys(lost["quantity"])))
        warnings.warn(
            f"{len(lost)} of {len(frame)} numbers are not finite ({names}): look for nan, inf or overflow in inputs, "
            f"targets and weights{_OF_ZERO * bool(lost['quantity'].isin(MAY_BE_UNDEFINED).all())}",
            RuntimeWarning,
            stacklevel=3,
        )
    frame = Table(frame)
    frame.attrs["witness"] = {} if witness is None else witness.record
    frame.attrs["arrays"] = {name: measured.arrays for name, measured in found.items() if measured.arrays}
    return frame
