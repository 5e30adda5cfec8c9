"""The quantity: its record, the request that it receives, and the rows of the table that it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hessfig.config.enums import DType, Method, Products
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, SpectrumConfig
from hessfig.errors import UserError, plain
from hessfig.models.protocol import kind
from hessfig.record import Status
from hessfig.terms import OPENED, Block, Part
from hessfig.weights import Layout

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from hessfig.curvature.problem import Objective


Row = dict[str, Any]
Arrays = dict[str, Any]
EXACT = "exact"
_NO_NUMBER = {"value": math.nan, "error": math.nan, "status": Status.nonfinite.value}


@dataclass(frozen=True)
class At:
    """The state of a network, for quantities that need more than its weights.

    Parameters
    ----------
    config : Config
    sigma : float, optional
    seed : int
    step : int, optional
        Of a training: the number of updates that were made.
    moments : dict, optional
        Of a training that hessfig.Monitor follows: the moments of its optimiser,
        {moment/parameter: tensor}.
    warm : dict
        The vectors that eigenvalue searches start from, which are `Measured.warm` of an
        earlier state.
    """

    config: Config
    sigma: float | None = None
    seed: int = 0
    step: int | None = None
    moments: Mapping[str, Tensor] | None = None
    warm: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """A request to measure a quantity: blocks and parts, estimator, and random streams.

    Parameters
    ----------
    blocks : sequence of Block
    parts : sequence of Part
    estimator : EstimatorConfig
    model : ModelConfig
        The settings of the network, for engines that know its kind.
    dtype : DType
    stream : callable
        Returns the generator of a column's probes, from its layer and name.
    probe_counts : dict
        What pilots chose for this cell (see hessfig.measurements.allocation).
    at : At
        The state of the network.
    spectrum : SpectrumConfig
        The settings of eigenvalues.
    """

    blocks: Sequence[Block]
    parts: Sequence[Part]
    estimator: EstimatorConfig
    model: ModelConfig
    dtype: DType
    stream: Callable[[int, str], Generator]
    probe_counts: Mapping[str, Any] = field(default_factory=dict)
    at: At = field(default_factory=lambda: At(Config()))
    spectrum: SpectrumConfig = field(default_factory=SpectrumConfig)


@dataclass(frozen=True)
class Measured:
    """Rows of the table (common columns are filled in: see `row_of`), and arrays to be stored next to them.

    Parameters
    ----------
    rows : list
    arrays : dict
    warm : dict
        Vectors from which a search at a nearby state may start.
    """

    rows: list[Row]
    arrays: Arrays = field(default_factory=dict)
    warm: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Requirement:
    """A condition on the settings of a quantity, and the texts of its error.

    The texts name the quantity and settings in braces: {quantity}, {state.kind}.
    """

    holds: Callable[[Config], object]
    what: str
    got: str
    allowed: str | Callable[[], str]
    remedy: str = "leave {quantity} out"

    def check(self, quantity: str, config: Config) -> None:
        """Raise UserError if the condition does not hold."""
        if self.holds(config):
            return
        allowed = self.allowed if isinstance(self.allowed, str) else self.allowed()
        named = {**vars(config), "quantity": quantity}
        raise UserError(
            f"quantities=[{quantity}]: {self.what}".format_map(named),
            got=self.got.format_map(named),
            allowed=allowed.format_map(named),
            remedy=self.remedy.format_map(named),
        )


@dataclass(frozen=True)
class Quantity:
    """A number (or several) of a network at a state: a row of hessfig.measurements.catalogue, or of the user's own.

    Parameters
    ----------
    name : str
    measure : callable or str
        Returns rows and arrays: a function, or "MODULE:FUNCTION" ("MODULE" where the
        function has the quantity's name), imported when it is called, so that plans need no
        torch.
    settings : callable
        Returns what enters the key of a cell.
    check : callable
        Raises UserError for settings under which it cannot be, before anything is measured.
    operations : callable
        Estimates the floating-point operations of a cell; 0 if they are unknown, and then
        estimated from the first cells.
    serves : callable
        Says which blocks have this quantity; next to other quantities it is measured for
        those alone.
    version : int
        Part of the key: increase it when numbers change.
    counts_inputs : bool
        It takes the inputs of K-FAC, whose definition changed where targets are ignored: see
        `version_of`.
    gives : tuple of str
        Names of the rows if they do not have the name of the quantity; two quantities with
        rows of the same name cannot be measured together.
    order : int
        The numbers follow from as many derivatives of the loss at the measured point
        (hessfig.Monitor's fingerprint takes as many).
    of_loss : bool
        Its numbers mean nothing where weights, outputs or the loss are not finite: all are
        `nonfinite` there.
    needs : tuple of Requirement
        What must hold of the settings, besides `check`.
    knows_decay : bool
        It is of the loss with what task.weight_decay adds, or not of the loss.
    may_be_undefined : tuple of str
        For quantities of the user's own: rows that are not finite at times although nothing
        is wrong. For the package's, hessfig.registry.row_facts says so.
    has_part : bool
        For quantities of the user's own: whether rows of a block are of a part of the
        Hessian.
    needs_optimiser : str
        It is of the next update of a training that hessfig.Monitor follows: of `any`
        optimiser (none: of gradient descent), or of a `given` one.
    holds : str
        The setting that counts the Lanczos vectors of a block that are held at once.
    walks : callable
        Whether it takes the loss away from the weights (on lines, in updates and searches,
        at zero, rounded): a cell of a network of the user's own is reused only if that is
        the same there, too; quantities of the user's own are taken to walk.
    """

    name: str
    measure: Callable[[Objective, Request], Measured] | str
    settings: Callable[[Config, Layout], dict[str, Any]] = lambda config, layout: {}
    check: Callable[[Config, Layout], None] = lambda config, layout: None
    operations: Callable[[Config, Layout], float] = lambda config, layout: 0.0
    serves: Callable[[Block], bool] = lambda block: True
    version: int = 1
    counts_inputs: bool = False
    gives: tuple[str, ...] = ()
    order: int = 2
    of_loss: bool = True
    needs: tuple[Requirement, ...] = ()
    knows_decay: bool = False
    may_be_undefined: tuple[str, ...] = ()
    has_part: bool = True
    needs_optimiser: Literal["", "any", "given"] = ""
    holds: str = ""
    walks: Callable[[Config], bool] = lambda config: False

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of its rows in the table."""
        return self.gives or (self.name,)

    def version_of(self, config: Config) -> int:
        """Return the version that enters keys: with `counts_inputs` one higher where targets may be ignored.

        Of built-in networks all targets count, so that their numbers, and their keys,
        are those of 0.4.0.
        """
        may_be_ignored = config.model.kind in OPENED
        return self.version + (self.counts_inputs and may_be_ignored)

    def check_settings(self, config: Config, layout: Layout) -> None:
        """Raise UserError for settings with which the quantity cannot be measured."""
        for requirement in self.needs:
            requirement.check(self.name, config)
        self.check(config, layout)

    def measured(self, objective: Objective, request: Request) -> Measured:
        """Return the result of `measure`, or of the function that it names, for a problem.

        Rows of a problem that is not finite are `nonfinite`, without arrays, also where a number
        could be computed (the zero of a part that happens not to see what is not finite).

        Raises
        ------
        UserError
            Where a quantity fails on a problem that is not finite, so that there are no rows.
        """
        from hessfig.curvature.gradients import is_finite

        if objective.witness and self.order > 1:
            by_differences = request.estimator.products == Products.differences
            objective.witness.check_products(by_differences=by_differences)
        if not self.of_loss or is_finite(objective):
            return self.function(objective, request)
        try:
            result = self.function(objective, request)
        except UserError:
            raise
        except (RuntimeError, ArithmeticError, ValueError) as error:
            raise _without_number(self.name, error) from error
        rows = []
        for row in result.rows:
            if row["status"] != Status.nonfinite:
                row = {**row, **_NO_NUMBER}
            rows.append(row)
        return replace(result, rows=rows, arrays={} if rows else result.arrays)

    @property
    def function(self) -> Callable[[Objective, Request], Measured]:
        """The function behind `measure`; its module is imported now, which may take seconds."""
        if not isinstance(self.measure, str):
            return self.measure
        module, _, name = self.measure.partition(":")
        function: Callable[[Objective, Request], Measured] = getattr(
            import_module(module), name or self.name
        )
        return function


def _without_number(name: str, error: Exception) -> UserError:
    """Return the error for a problem that is not finite, on which a quantity fails."""
    return UserError(
        f"quantities: {name} has no value here: the weights, the outputs or the loss are not finite",
        got=plain(f"{type(error).__name__}: {error}", most=300),
        allowed="finite weights, outputs and loss",
        remedy="look for nan, inf or overflow in weights, inputs and targets",
    )


def asked_of(
    quantity: Quantity,
    blocks: Sequence[Block],
    at: At,
    probe_counts: Mapping[str, Any] = MappingProxyType({}),
) -> Request:
    """Return the request of a quantity at a state: the blocks that have it, and the streams of its probes.

    A stream is seeded by the seed, the quantity's name, sigma and step, and by the layer and
    name of a column: neither the other quantities of a run nor its other cells move it.
    """
    from hessfig.rng import probe_stream

    config = at.config
    return Request(
        blocks=[block for block in blocks if quantity.serves(block)],
        parts=config.parts,
        estimator=config.estimator,
        model=config.model,
        dtype=config.dtype,
        stream=partial(probe_stream, at.seed, quantity.name, at.sigma, step=at.step),
        probe_counts=probe_counts,
        at=at,
        spectrum=config.spectrum,
    )


def row_of(block: Block | None = None, **columns: Any) -> Row:
    """Return a row of the table about `block` (None: about the whole network); index and error may be left out.

    Examples
    --------
    >>> row = row_of(Block(1, "W_Q", "W_V"), quantity="frobenius", value=2.0)
    >>> row["layer"], row["row"], row["col"], row["value"], row["index"]
    (1, 'W_Q', 'W_V', 2.0, None)
    """
    place: Row = {"layer": 0, "row_layer": 0, "row": "", "col": ""}
    if block is not None:
        place = {
            "layer": block.layer,
            "row_layer": block.row_layer,
            "row": str(block.row),
            "col": str(block.col),
        }
    return {
        **place,
        "part": "",
        "index": None,
        "error": None,
        "num_probes": 0,
        **columns,
    }


@dataclass(frozen=True)
class Estimate:
    """A number and its error.

    Parameters
    ----------
    value : float
    error : float
        One standard error, 0 if the value is exact, and NaN if the estimator gives none.
    num_probes : int
        0 where there are none.
    by : str
        The estimator that computed the number if it is not the configured one.
    is_unreliable : bool
        Its products are less accurate than allowed, so that it enters no mean.
    """

    value: float
    error: float
    num_probes: int
    by: str = ""
    is_unreliable: bool = False


class ColumnOfBlocks(NamedTuple):
    """The blocks of one column of the Hessian: of the weights `col` of a layer."""

    layer: int
    col: str
    blocks: list[Block]


def columns(blocks: Iterable[Block]) -> list[ColumnOfBlocks]:
    """Return every column of the blocks, in their order; one column shares its products.

    Examples
    --------
    >>> first, second = Block(1, "W_Q", "W_V"), Block(1, "W_V", "W_V")
    >>> [(column.col, len(column.blocks)) for column in columns([first, second])]
    [('W_V', 2)]
    """
    grouped: dict[tuple[int, str], list[Block]] = {}
    for block in blocks:
        grouped.setdefault((block.layer, block.col), []).append(block)
    return [ColumnOfBlocks(*key, members) for key, members in grouped.items()]


def check_served(quantities: Sequence[Quantity], blocks: Sequence[Block]) -> None:
    """Raise UserError for a quantity that none of the blocks has, and for a block that has none of the quantities.

    Raises it also for two quantities that write the same rows, which a table could not
    distinguish.
    """
    _check_apart(quantities)
    for quantity in quantities:
        if not any(map(quantity.serves, blocks)):
            raise _unserved(
                f"{quantity.name} cannot be had for any of these blocks", blocks[0]
            )
    for block in blocks:
        if not any(quantity.serves(block) for quantity in quantities):
            raise _unserved(
                f"{', '.join(other.name for other in quantities)} cannot be had for a block",
                block,
            )


def _check_apart(quantities: Sequence[Quantity]) -> None:
    """Raise UserError for two quantities that write the same rows."""
    for first, later in combinations(quantities, 2):
        if first.name == later.name:
            continue
        same = [name for name in later.rows if name in first.rows]
        if same:
            raise UserError(
                f"quantities: {first.name} and {later.name} give the same rows",
                got=f"both give {', '.join(same)}",
                allowed="one of the two in a run",
                remedy=f"quantities=[{first.name}], and {later.name} in a run with its own sweep.name",
            )


def _unserved(what: str, block: Block) -> UserError:
    """Return the error for blocks that do not have a quantity."""
    return UserError(
        f"quantities: {what}: a pair of different weights has none",
        got=f"block {block}",
        allowed="diagonal blocks",
        remedy=f"blocks=[{block.row},{block.col}], or quantities=[frobenius] for pairs",
    )


def block_row(
    quantity: str,
    request: Request,
    block: Block,
    part: Part,
    estimate: Estimate,
    *,
    index: int | None = None,
) -> Row:
    """Return the row of one part of one block. Raises ArithmeticError if a structural zero does not vanish.

    A block that is zero by the structure of the network must come out as exactly 0: anything
    else is a wrong product, not rounding.
    """
    return row_of(
        block,
        part=part.value,
        quantity=quantity,
        index=index,
        value=estimate.value,
        error=error_of(estimate),
        num_probes=estimate.num_probes,
        **_made_by(request, estimate),
        status=_status(quantity, request, block, part, estimate).value,
    )


def state_row(
    quantity: str,
    request: Request,
    number: float | Estimate,
    *,
    block: Block | None = None,
    part: Part | None = None,
    layer: int = 0,
    index: int | None = None,
) -> Row:
    """Return the row of a number that is not a structural zero; a plain float is exact.

    It is of a block and part, of a layer, or (layer 0) of the whole network.
    """
    estimate = number if isinstance(number, Estimate) else exact(number)
    place = {} if block is not None else {"layer": layer, "row_layer": layer}
    return row_of(
        block,
        **place,
        part=part.value if part else "",
        quantity=quantity,
        index=index,
        value=estimate.value,
        error=error_of(estimate),
        num_probes=estimate.num_probes,
        estimator=estimate.by,
        dtype=request.dtype.value,
        status=_reached(estimate).value,
    )


def state_rows(
    request: Request, numbers: Mapping[str, float | Estimate], **place: Any
) -> list[Row]:
    """Return the rows of numbers by the names of their quantities, all of one block or layer (see `state_row`)."""
    return [
        state_row(name, request, number, **place) for name, number in numbers.items()
    ]


def exact(value: float, by: str = EXACT, *, is_unreliable: bool = False) -> Estimate:
    """Return a number without error, computed `by` the named estimator.

    Examples
    --------
    >>> exact(2.0).error, exact(2.0).by
    (0.0, 'exact')
    """
    return Estimate(value, 0.0, 0, by, is_unreliable)


def without_error(value: float, by: str = EXACT) -> Estimate:
    """Return a number whose error is not known."""
    return Estimate(value, math.nan, 0, by)


def error_of(estimate: Estimate) -> float | None:
    """Return the error: none where the estimator gives none, nan for a number that is not finite.

    Examples
    --------
    >>> error_of(exact(2.0)), error_of(without_error(2.0)), error_of(exact(math.inf))
    (0.0, None, nan)
    """
    if not math.isfinite(estimate.value):
        return math.nan
    return None if math.isnan(estimate.error) else estimate.error


def _made_by(request: Request, estimate: Estimate) -> dict[str, str]:
    """Return the estimator and type of this number: exact norms are float64 whatever the probes are."""
    if estimate.by == Method.exact:
        return {"estimator": Method.exact.value, "dtype": DType.float64.value}
    return {
        "estimator": estimate.by or request.estimator.method.value,
        "dtype": request.dtype.value,
    }


def _status(
    quantity: str, request: Request, block: Block, part: Part, estimate: Estimate
) -> Status:
    """Return the status of a number of a block, which may vanish by the network's structure.

    Not finite first, then structural zeros, then accuracy.
    """
    if not math.isfinite(estimate.value):
        return Status.nonfinite
    # Weight decay adds its own part to a weight's diagonal block, whatever the network.
    has_decay = bool(request.at.config.task.weight_decay)
    is_decayed = has_decay and part == Part.H_f and block.is_diagonal
    is_zero = kind(request.model.kind).is_structural_zero
    if not is_decayed and is_zero(request.model, block, part):
        return _zero(quantity, block, part, estimate)
    return _reached(estimate)


def _reached(estimate: Estimate) -> Status:
    """Return the status of a number by its value and its accuracy."""
    if not math.isfinite(estimate.value):
        return Status.nonfinite
    if estimate.is_unreliable:
        return Status.not_converged
    return Status.ok


def _zero(quantity: str, block: Block, part: Part, estimate: Estimate) -> Status:
    """Return the status of a structural zero. Raises ArithmeticError if it does not vanish."""
    if estimate.value == 0.0:
        return Status.structural_zero
    if estimate.is_unreliable:
        return Status.not_converged
    raise ArithmeticError(
        f"{quantity} of {part} of block {block} must vanish by the network's structure but is {estimate.value!r}"
    )
