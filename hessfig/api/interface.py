"""The Python interface: blocks of the Hessian of any network, with the engines of the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import pandas as pd

from hessfig.analysis.presented import Table, described_html
from hessfig.api.arguments import Measure, Spec, device_of, one_of, whole
from hessfig.api.waiting import waiting
from hessfig.config.enums import DType
from hessfig.config.of_quantities import ApproximationConfig
from hessfig.config.schema import Config
from hessfig.curvature.batched import undisturbed
from hessfig.curvature.double_backward import differentiating
from hessfig.curvature.loss_convexity import why_no_split
from hessfig.errors import UserError, first_few, plain
from hessfig.measurements.catalogue import measured_once, quantity, undefined_rows
from hessfig.measurements.quantity import At, Measured, asked_of, check_served
from hessfig.measurements.requirements import check_parts
from hessfig.models.blocks import blocks_of
from hessfig.record import COLUMNS, Status
from hessfig.terms import OF_THE_BLOCK, Approximation, Block, Part
from hessfig.weights import Layout

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hessfig.curvature.approximations.approximated_block import ApproximatedBlock
    from hessfig.curvature.block_operator import BlockOperator
    from hessfig.curvature.problem import Objective, Witness
    from hessfig.models.own.kept_checks import KeptChecks, Request


_OF_ZERO = " (of a block that is zero these are not defined)"


def _settings(
    block: Any, part: str, dtype: str, device: str, products: str
) -> tuple[Measure, Config]:
    """Return what an operator is asked for, and the settings that stand for it. Raises UserError."""
    wanted = Measure([block], [part], dtype=dtype, device=device, products=products)
    return wanted, wanted.config()


_known_settings = lru_cache(maxsize=256)(_settings)


@dataclass(frozen=True)
class Problem:
    """The loss of a network on data: the function whose Hessian is measured.

    The general form is ``Problem(network, batches, compute_loss=f)``: any function
    f(network, batch) with one real number as its value, on batches of any type. The
    function measured is L(w) = sum_b w_b f(network, b) / sum_b w_b.

    The form ``Problem(network, inputs, targets, loss)`` knows outputs and samples, and
    so H_o, H_f, K-FAC and the quantities of single samples. Of batches with losses
    L_b(w), the function is L(w) = sum_b n_b L_b(w) / sum_b n_b. The weight n_b is what
    the mean of the batch divides by: its number of samples or numbers, or the class
    weights of its targets that are not ignored.

    Parameters
    ----------
    network : torch.nn.Module
        Any network, in evaluation mode. A TransformerBridge takes tokens (samples,
        length) alone: each token is to predict the next one, and weights=None means
        "found" (docs/real-models.md).
    inputs : tensor, tuple, dict, or an iterable of these
        One batch: a tensor whose first axis counts the samples, a tuple of several
        inputs, or a dictionary of arguments; arrays of NumPy count as tensors. A list,
        DataLoader or iterable of these, or of (inputs, targets) pairs, holds several
        batches; a Dataset holds samples, which make one batch. It is read once, here,
        and kept; generators of random numbers stay as they were.
    targets : tensor, list of tensors or str, optional
        One tensor per batch; classes of -100 are ignored, as in torch. A name is that
        entry of a dictionary. By default the second of a pair, or the entry `labels` of
        a dictionary.
    loss : str, torch.nn.Module or callable, optional
        "cross_entropy" (outputs (..., classes), targets (...)), "mse", "mse_sum", a
        function loss(outputs, targets), or a module with `reduction` "mean" or "sum";
        it returns a tensor of shape (). By default the loss that the network itself
        returns for its labels (as models of transformers do); without one, the
        cross-entropy of outputs and targets, except for the entry `labels` of a
        dictionary, which needs a loss.
    weights : dict, hessfig.weights.Layout or str, optional
        {name: weight}, where a weight is the name of a parameter, ("emb.weight", index)
        for a view of it, such as [0, 2, 5] for three rows, or a list of these for a
        group, which holds each entry once. A name may give its layer: "W_V@2".
        "trainable" takes the parameters that require a gradient (LoRA), and the others
        are constants; "found", or what hessfig.find_weights returns, the weights of a
        transformer by what they do, W_Q to W_out of each layer. By default every
        parameter by its own name, frozen ones too (the default of a Monitor is
        "trainable").
    outputs : str or int, optional
        Name or index of the output that the loss takes, for a network that returns
        several tensors.
    memory : str, optional
        Bytes that the products of a network with more than 65 536 parameters may take,
        such as "16GB": batches that need more are split, and graphs are kept between
        products as far as they fit. By default 8 GB on the CPU, and 80 percent of the
        free memory of a card.
    compute_loss : callable, optional
        f(network, batch), which returns a tensor of shape (). `inputs` are then the
        batches: one of any type, or a list, DataLoader, Dataset or iterable of several.
    batch_weights : sequence of float or callable, optional
        With compute_loss, the weight w_b of every batch, or a function of a batch that
        returns it. By default 1.
    compute_outputs : callable, optional
        With compute_loss, g(network, batch), which returns one tensor. The loss is then
        f(outputs, batch), and H is split into H_o and H_f if it is convex in the
        outputs.
    sharded_batches : bool
        Of a network whose parameters are DTensors, which is measured on all ranks of
        torchrun: each rank has batches of its own (docs/cluster.md). By default all
        have the same.

    Raises
    ------
    UserError
        For batches without end, and for arguments of both forms. Other arguments are
        checked when they are used: by hessfig.measure, `operator` and `approximation`.
        A loss of another type is evaluated on all outputs joined, and refused if it is
        not such a mean.

    Examples
    --------
    >>> import torch, hessfig
    >>> network, inputs, targets = torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])
    >>> hessfig.Problem(network, inputs, targets, weights={"first_row": ("weight", [0])})
    Problem of Linear (parameters: 8, loss: the network's own, else cross_entropy, weights: first_row)
    >>> batches = [(torch.ones(2, 3), torch.zeros(2, 3)), (torch.eye(3), torch.ones(3, 3))]
    >>> def contrast(network, batch):
    ...     return (network(batch[0]) * network(batch[1])).mean()
    >>> hessfig.Problem(network, batches, compute_loss=contrast, batch_weights=lambda batch: len(batch[0]))
    Problem of Linear (parameters: 8, loss: contrast, weights: every parameter, batches: 2)
    """

    network: nn.Module
    inputs: Any
    targets: Any = None
    loss: str | nn.Module | Callable[[Any, Tensor], Tensor] | None = None
    weights: Mapping[str, Spec] | Layout | str | None = None
    outputs: str | int | None = None
    memory: str | None = None
    _: KW_ONLY
    compute_loss: Callable[[Any, Any], Tensor] | None = None
    batch_weights: Sequence[float] | Callable[[Any], Any] | None = None
    compute_outputs: Callable[[Any, Any], Tensor] | None = None
    sharded_batches: bool = False

    def __post_init__(self) -> None:
        """Read a loader or an iterable once, so that every measurement uses the same batches."""
        from hessfig.models.own.batches import keep_batches
        from hessfig.models.own.opaque import opaque_batches, warn_of_lengths

        others = ("targets", "loss", "outputs", "batch_weights", "compute_outputs")
        check_form(self.compute_loss, **{name: getattr(self, name) for name in others})
        if self.compute_loss is not None:
            warn_of_lengths(self.inputs, self.batch_weights)
            object.__setattr__(self, "inputs", opaque_batches(self.inputs))
            return
        for name in ("inputs", "targets"):
            object.__setattr__(self, name, keep_batches(getattr(self, name), name))

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments: a copy of a problem keeps nothing of what was checked for this one."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def _kept_checks(self) -> KeptChecks:
        from hessfig.models.own.kept_checks import KeptChecks

        return KeptChecks()

    def objective(self, dtype: str) -> Objective:
        """Return the checked problem, on copies of network and data, for the engines of hessfig.curvature.

        The derivatives of the copy are compared with those of your own function.

        Parameters
        ----------
        dtype : str
            "float64" or "float32".

        Returns
        -------
        hessfig.curvature.Objective
            Its own docstring has an example.

        Raises
        ------
        UserError
            For what does not fit (names, slices, shapes, training mode, random
            outputs), and for a function that cannot be measured as it is.
        """
        from hessfig.models.own.kept_checks import Checking

        return Checking(self._request(one_of("dtype", dtype, DType))).objective

    def _checked(self, dtype: str, place: torch.device) -> Objective:
        """Return the checked problem on a device: the last one, while the user's function is the same."""
        return self._kept_checks.objective(self._request(dtype, place))

    def _request(self, dtype: str, place: torch.device | None = None) -> Request:
        from hessfig.models.own.kept_checks import Request

        return Request(self.network, self.__getstate__(), self._opened, dtype, place)

    def _opened(self) -> Any:
        """Return the request of a user. Raises UserError for what cannot be measured."""
        from hessfig.models.own.border import open_request
        from hessfig.models.own.computed import open_function
        from hessfig.models.own.own_checks import check_not_sharded

        check_not_sharded(self.sharded_batches)
        if self.compute_loss is not None:
            functions = (self.compute_loss, self.compute_outputs, self.batch_weights)
            return open_function(
                self.network, self.inputs, *functions, self.weights, self.memory
            )
        return open_request(
            self.network,
            self.inputs,
            self.targets,
            self.loss,
            self.weights,
            self.outputs,
            self.memory,
        )

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
        """Return one block of H, H_o or H_f as an operator A: products A v, solutions, dense matrix (docs/library.md).

        H = H_o + H_f (eq. 2). For outputs f(w) with Jacobians J_row and J_col in the
        two weights, a loss l(f) and B = d^2 l / df^2, H_o = J_row^T B J_col
        (Gauss-Newton) and H_f = sum_i (dl / df_i) d^2 f_i / (dw_row dw_col).

        Parameters
        ----------
        block : str or (row, column)
            One weight, group or pair as in hessfig.measure: "W_V@2", ("W_Q", "W_V"),
            "all" for the whole network.
        part : str
            "H", "H_o" or "H_f". Linear systems with H_o are solved by conjugate
            gradients, with the two others, which may be indefinite, by MINRES.
        dtype, device : str
            Of the products: "float64" or "float32"; "cpu", "cuda" or "cuda:N".
        products : str
            "auto", or "curvlinops", or "differences" of gradients for networks without
            second derivatives in torch. Every product by differences has its own error,
            in `last_errors`; it is refused if that is above a tenth.

        Returns
        -------
        hessfig.curvature.BlockOperator
            It holds copies of network and data, so it does not change while a training
            continues. Of a network whose parameters are DTensors: a
            hessfig.api.sharded.ShardedOperator (docs/cluster.md).

        Raises
        ------
        UserError
            For a block or part that does not exist, and for names that match several
            blocks.

        Examples
        --------
        >>> import torch, hessfig
        >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.zeros(3, 2), "mse")
        >>> operator = problem.operator("weight")
        >>> operator.shape, [round(float(entry), 6) for entry in operator @ torch.ones(6)]
        ((6, 6), [0.333333, 0.333333, 0.333333, 0.333333, 0.333333, 0.333333])
        """
        from hessfig.curvature.block_operator import BlockOperator
        from hessfig.models.own.own_checks import is_sharded
        from hessfig.models.routes import Engines

        given = (block, part, dtype, device, products)
        are_names = all(isinstance(one, str) for one in given)
        settings = _known_settings if are_names else _settings
        wanted, config = settings(*given)
        if is_sharded(self.network):
            from hessfig.api.sharded import sharded_operator

            return sharded_operator(self, config, block)
        config, problem, single = self._single(wanted, config)
        engines = Engines(problem, config.model, config.estimator.products)
        return BlockOperator(
            problem,
            single,
            config.parts[0],
            lambda of: engines.column(of.layer, of.col, [of]),
            self._kept_checks.made(problem, products),
        )

    def approximation(
        self, name: str, block: str, part: str = "H", *, rank: int = 3, seed: int = 0
    ) -> ApproximatedBlock:
        """Return an approximation of a diagonal block B as an operator: K-FAC, Shampoo, a Fisher matrix and others.

        docs/studies/approximations.md defines each. Which one to take: as a
        preconditioner of `solve`, "kfac" or "ekfac", which need no product with B; to
        find out how good a structure can be at best, "diagonal", "kfoc",
        "kronecker_sum" or "soap", which are computed from the dense block (some
        thousand entries at most).

        Parameters
        ----------
        name : str
            One of hessfig.terms.Approximation.
        block : str
            A weight, or "all", as in `operator`.
        part : str
            The part B that diagonal, soap, kfoc, kronecker_sum, block_diagonal and
            layer_diagonal approximate; the others do not depend on it.
        rank : int
            Number of Kronecker products in kronecker_sum.
        seed : int
            Of the labels that sampled_fisher draws.

        Returns
        -------
        hessfig.curvature.ApproximatedBlock

        Raises
        ------
        UserError
            For a name that the block cannot have, such as "kfac" of a table of
            embeddings.

        Examples
        --------
        >>> import torch, hessfig
        >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.zeros(3, 2), "mse")
        >>> exact, diagonal = problem.operator("weight"), problem.approximation("diagonal", "weight")
        >>> bool(torch.allclose(exact.dense(), diagonal.dense()))
        True
        """
        from hessfig.curvature.approximations.approximated_block import (
            ApproximatedBlock,
        )
        from hessfig.curvature.block_operator import Entries
        from hessfig.measurements.approximations import approximation_of

        kind = one_of("name", name, Approximation)
        chosen = ApproximationConfig(
            names=[kind], rank=whole("rank", rank, most=64, example=3)
        )
        method = "dense" if kind in OF_THE_BLOCK else "auto"
        wanted = Measure([block], [part], ["approximations"], method, seed=seed)
        config, problem, single = self._single(
            wanted, replace(wanted.config(), approximation=chosen)
        )
        request = asked_of(
            quantity("approximations"), [single], At(config, seed=config.first_seed)
        )
        with undisturbed(problem), _kept(self):
            product = approximation_of(problem, request)
        return ApproximatedBlock(
            name, single, product, Entries(problem, single.layer, single.col)
        )

    def _single(
        self, wanted: Measure, config: Config
    ) -> tuple[Config, Objective, Block]:
        """Return settings, a copy of the problem, and the named block. Raises UserError for several blocks."""
        place = device_of(wanted.device or "cpu")
        with differentiating():
            problem = self._checked(config.dtype, place)
            # Other parts call the loss.
            with nullcontext() if config.parts == [Part.H] else _kept(self):
                config, blocks = checked_request(config, problem, str(config.parts[0]))
        if len(blocks) > 1:
            names = [f"{block.col}@{block.layer}" for block in blocks]
            raise UserError(
                "operator: this name matches several blocks",
                got=plain(repr(wanted.blocks[0])),
                allowed=first_few(names),
                remedy=f"for example {names[-1]}",
            )
        return config, problem, blocks[0]

    def _repr_html_(self) -> str:
        return described_html(
            f"Problem of {type(self.network).__name__}", self._facts()
        )

    def _facts(self) -> dict[str, Any]:
        """Return the facts in a problem's repr: its size, its loss and its weights, without tensors."""
        named = self.weights.names if isinstance(self.weights, Layout) else self.weights
        if isinstance(named, str):
            weights = named
        else:
            weights = ", ".join(named or ()) or "every parameter"
        loss = self.compute_loss or self.loss or "the network's own, else cross_entropy"
        return {
            "parameters": sum(
                parameter.numel() for parameter in self.network.parameters()
            ),
            "loss": loss
            if isinstance(loss, str)
            else getattr(loss, "__name__", type(loss).__name__),
            "weights": weights,
            **({"batches": len(self.inputs)} if self.compute_loss else {}),
        }


def check_form(compute_loss: Any, **others: Any) -> None:
    """Raise UserError for an argument that only the other form of a problem has."""
    of_function = {"batch_weights", "compute_outputs"}
    both = [
        name
        for name, one in others.items()
        if one is not None and (name in of_function) == (compute_loss is None)
    ]
    if both:
        raise UserError(
            f"{both[0]} {'without' if compute_loss is None else 'next to'} compute_loss",
            got=first_few(both),
            allowed="(network, batches, compute_loss=f, batch_weights=..., compute_outputs=...), or (network, inputs, "
            "targets, loss, outputs=...)",
            remedy="hessfig.Problem(network, batches, compute_loss=lambda network, batch: ...), where the function "
            "reads inputs, targets and outputs itself",
        )


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

    H = H_o + H_f (eq. 2), with H_o = J^T B J the Gauss-Newton part and H_f = sum_i (dl
    / df_i) d^2 f_i / dw^2 the functional part, where J is the Jacobian of the outputs f
    and B the Hessian of the loss l in them. By default the numbers are Frobenius norms.
    With K probes v_k (E[v v^T] = I) the norm of a block A is estimated as ``sqrt(sum_k
    |A v_k|^2 / K)``, and a trace as ``sum_k v_k . A v_k / K``.

    Parameters
    ----------
    problem : hessfig.Problem
        The loss, its data and its named weights.
    blocks : str or list
        "each" (the diagonal block of every weight), "pairs" (every pair of weights),
        one name, or a list of names, groups and (row, column) pairs. In a list the name
        "all" is the whole network, and a pattern ("*.attn.*") stands for every weight
        that it matches.
    parts : str, list of str, optional
        "H", "H_o", "H_f", or a list. By default all three if the loss is convex in the
        outputs, else H alone.
    quantities : str or list of str
        Names of hessfig.measurements.catalogue, such as "frobenius", "trace",
        "largest_eigenvalue" (docs/table.md). Traces and eigenvalues are of diagonal
        blocks only.
    estimator : str
        How norms and traces are found (docs/accuracy.md). Which one to take:

        - "auto", the default, for every size: exact by a formula where that is cheap,
          dense where a column of a small network has at most 256 entries, else by
          probes (small: at most 65 536 parameters);
        - "dense" for exact norms of blocks of up to some thousand entries: one product
          for each entry of the column;
        - "aligned" for norms of larger blocks: probes along the block's own axes, with
          intervals that hold from four probes on;
        - "hutchinson" for the method of the paper: a single norm is correct to 3 to 8 %
          with 20 probes, and intervals are reliable with 12 probes or more;
        - "xtrace" for traces of blocks whose eigenvalues decay quickly.
    num_probes : int
        Random vectors for each column of blocks. The error decreases as 1 /
        sqrt(num_probes).
    spectrum : dict, optional
        Settings of eigenvalues and densities, as in config.science.SpectrumConfig:
        {"k": 3, "steps": 80}.
    directions : dict, optional
        Settings of the quantity along (docs/studies/directions.md): {"named":
        ["update"], "rules": ["adamw", "muon"]}.
    seed : int
        Of all random vectors; equal seeds give equal bits, here and on the command
        line.
    dtype : str
        "float64"; or "float32", which takes half the memory and has larger errors,
        above all where attention saturates.
    device : str
        "cpu", "cuda" or "cuda:N".
    products : str
        "auto"; "curvlinops"; or "differences" of gradients, for networks without second
        derivatives in torch: they give Frobenius norms, traces, and the largest and
        smallest eigenvalues, with errors that include those of the differences
        (docs/accuracy.md). In float32 these are about 1e-3: set spectrum={"tolerance":
        1e-2}.

    Returns
    -------
    pandas.DataFrame
        One row per measured number, with the columns of hessfig.record.COLUMNS
        (docs/table.md); `error` is one standard error, 0 for exact numbers. The arrays
        of a quantity are in `table.attrs["arrays"]` under its name.

    Raises
    ------
    UserError
        (a ValueError) for what cannot be measured.

    Warns
    -----
    RuntimeWarning
        If products of curvlinops are wrong or cannot be computed and a slower route is
        used (large networks with LayerNorm or SiLU: docs/own-model.md), if no parameter
        reaches the outputs, and if numbers are not finite: these have the status
        `nonfinite` and the error nan.

    Notes
    -----
    A network of at most 65 536 parameters is measured on one thread, because more
    threads are slower; the number of threads of torch is restored.

    A call of more than two seconds shows a bar on a terminal and in a notebook. After
    Ctrl-C nothing is kept; finished cells of `hessfig.run` are.

    Examples
    --------
    >>> import torch, hessfig
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.zeros(3, 2), "mse")
    >>> table = hessfig.measure(problem, blocks=["weight"], quantities=["frobenius", "trace"], parts="H")
    >>> table[["row", "part", "quantity", "value", "error"]].round(4).values.tolist()
    [['weight', 'H', 'frobenius', 0.8165, 0.0], ['weight', 'H', 'trace', 2.0, 0.0]]
    """
    from hessfig.models.own.own_checks import is_sharded

    if not isinstance(problem, Problem):
        raise UserError(
            "measure: the problem is of another kind",
            got=type(problem).__name__,
            allowed="a hessfig.Problem",
            remedy="hessfig.measure(hessfig.Problem(network, inputs, targets))",
        )
    wanted = Measure(
        blocks,
        parts,
        quantities,
        estimator,
        num_probes,
        spectrum,
        seed,
        dtype,
        device,
        directions,
        products,
    )
    place = device_of(device)
    config = wanted.config()
    if is_sharded(problem.network):
        from hessfig.api.sharded import measure_sharded

        return _frame(
            measure_sharded(problem, of_ranks(config, parts, problem)),
            config.first_seed,
            None,
        )
    with waiting() as watched, differentiating(), _kept(problem):
        # Refuses objects that are not networks.
        objective = problem._checked(config.dtype, place)
        with undisturbed(objective):
            config, named = checked_request(config, objective, parts)
            at = At(config, seed=config.first_seed)
            asked = watched.of(
                {
                    name: asked_of(quantity(name), named, at)
                    for name in config.quantities
                }
            )
            measured = {
                name: quantity(name).measured(objective, request)
                for name, request in asked.items()
            }
    return _frame(measured, config.first_seed, objective.witness)


def of_ranks(config: Config, parts: Any, problem: Problem) -> Config:
    """Return the settings for a sharded network: H alone where no parts are asked for and outputs are not known."""
    is_whole = parts is None and problem.compute_outputs is None
    return replace(config, parts=[Part.H]) if is_whole else config


def _kept(problem: Problem) -> AbstractContextManager[None]:
    """Return a context after which lists and dictionaries that hooks and losses fill are as before."""
    from hessfig.models.own.preserved import preserved

    return preserved(
        problem.network, problem.compute_loss or problem.loss, numbers=False
    )


def checked_request(
    config: Config, objective: Objective, parts: Any, *, is_followed: bool = False
) -> tuple[Config, list[Block]]:
    """Return the settings with the existing parts, and the requested blocks of a user's own network.

    Raises UserError for what cannot be measured; where a training `is_followed`, its
    caller checks the optimiser.
    """
    config = _with_parts(measured_once(config), objective, parts)
    quantities = [quantity(name) for name in config.quantities]
    blocks = blocks_of(config.blocks, objective.layout, config.model)
    check_served(quantities, blocks)
    check_parts(config, blocks)
    for each in quantities:
        if not (is_followed and each.needs_optimiser):
            each.check_settings(config, objective.layout)
    return config, blocks


def _with_parts(config: Config, objective: Objective, asked: Any) -> Config:
    """Return the settings with the parts that exist: H alone if the loss is not convex in the declared outputs.

    Raises UserError, with the reason, if another part was requested.
    """
    why = why_no_split(objective) if set(config.parts) - {Part.H} else ""
    if why and asked is not None:
        raise UserError(
            f"parts: H_o and H_f are not defined here: {why}",
            got=plain(repr(asked)),
            allowed="H",
            remedy="parts='H', or declare outputs in which the loss is convex: outputs='NAME' with loss=..., or "
            "compute_outputs=g(network, batch) with compute_loss=f(outputs, batch)",
        )
    return replace(config, parts=[Part.H]) if why else config


def _frame(
    measured: Mapping[str, Measured], seed: int, witness: Witness | None
) -> pd.DataFrame:
    shared = {"sweep": "", "variant": "", "num_layers": 0, "seed": seed}
    rows = [{**shared, **row} for result in measured.values() for row in result.rows]
    frame = pd.DataFrame(
        rows, columns=[name for name in COLUMNS if name not in ("seconds", "config")]
    )
    frame = frame.astype(
        {"value": float, "error": float, "sigma": float, "step": float}
    )
    lost = frame[frame["status"] == Status.nonfinite]
    may_be = undefined_rows(measured)
    if len(lost) < len(frame):  # if no number is finite, something is wrong
        lost = lost[~lost["quantity"].isin(may_be)]
    if len(lost):
        names = first_few(list(dict.fromkeys(lost["quantity"])))
        warnings.warn(
            f"{len(lost)} of {len(frame)} numbers are not finite ({names}): look for nan, inf or overflow in inputs, "
            "targets and weights; if only second derivatives are nan (rows of attention that are wholly masked): "
            f"products='differences'{_OF_ZERO * bool(lost['quantity'].isin(may_be).all())}",
            RuntimeWarning,
            stacklevel=3,
        )
    frame = Table(frame)
    frame.attrs["witness"] = {} if witness is None else witness.record
    frame.attrs["arrays"] = {
        name: result.arrays for name, result in measured.items() if result.arrays
    }
    return frame
