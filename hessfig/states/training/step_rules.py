"""Update rules of trainings: torch's optimisers, steps divided by curvature, and estimates of the curvature."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config.enums import Curvature, Schedule
from hessfig.config.training_settings import TrainingConfig
from hessfig.curvature.double_backward import gradients
from hessfig.curvature.gradients import hessian_product
from hessfig.curvature.spectral.lanczos import largest_ritz
from hessfig.rng import row_major, stream
from hessfig.states.training.second_order import BatchLoss, Solver, solver

PRODUCTS = 12  # Hessian products per largest eigenvalue, sufficient for an error of a few per cent
FLATTEST = 1e-3  # share of the largest curvature below which no block counts as flatter
_EXPONENT = -0.25  # exponent of the rule for gradient_norm
_TINY = 1e-8

Loss = Callable[[], Tensor]


def products_of_a_refresh(kind: Curvature, parameters: int) -> int:
    """Return how many Hessian products one refresh takes in a network of so many parameters (tensors)."""
    products = {Curvature.whole: PRODUCTS, Curvature.blocks: PRODUCTS * parameters}
    return products.get(kind, 0)


def factors(
    kind: Curvature, named: Mapping[str, Tensor], loss: Loss, *, seed: int, step: int
) -> Float[Tensor, " groups"]:
    """Return the factor of the learning rate of each group of parameters.

    whole: 1 / largest eigenvalue of the Hessian. blocks: the same for each parameter's
    own block, divided by their geometric mean; no block counts as flatter than FLATTEST
    times the steepest. gradient_norm: the estimate min(1, (largest / smallest norm of a
    parameter's gradient)^(-1/4)) from the current gradients.
    """
    parameters = list(named.values())
    if kind == Curvature.gradient_norm:
        return _stand_in([one.grad for one in parameters if one.grad is not None])
    with torch.enable_grad():
        slopes = gradients(loss(), parameters, create_graph=True)
    groups = [(parameters, list(slopes))]
    if kind == Curvature.blocks:
        groups = [([one], [own]) for one, own in zip(parameters, slopes, strict=True)]
    steepest = []
    for number, group in enumerate(groups):
        steepest.append(_largest(*group, seed=seed, step=step, number=number))
    curvatures = torch.tensor(steepest, dtype=torch.float64)
    curvatures = curvatures.clamp(min=max(FLATTEST * float(curvatures.max()), _TINY))
    if kind == Curvature.whole:
        return 1 / curvatures
    return curvatures.log().mean().exp() / curvatures


def _largest(
    group: list[Tensor], slopes: list[Tensor], *, seed: int, step: int, number: int
) -> float:
    size = sum(map(Tensor.numel, group))
    start = torch.randn(size, generator=stream(seed, "steepest", step, number)).to(
        slopes[0]
    )

    def product(vector: Tensor) -> Tensor:
        return hessian_product(slopes, vector, group)

    return largest_ritz(product, start, PRODUCTS)


def _stand_in(slopes: list[Tensor]) -> Float[Tensor, "1"]:
    norms = torch.stack(list(map(Tensor.norm, slopes))).double()
    ratio = norms.max() / (norms.min() + _TINY)
    return (ratio**_EXPONENT).clamp(max=1.0).reshape(1)


EIGENBASES = "Q"  # SOAP's
FACTORS, REFRESHED = "rate_factors", "refreshed"


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Return the learning rate of update `step` (1 to training.steps).

    It rises linearly during the warm-up and reaches training.learning_rate at the
    warm-up's last update. Then it is constant, or half a cosine that would be zero at
    the update after the last.
    """
    done = step - 1
    warmup = training.warmup
    if done < warmup:
        return training.learning_rate * step / warmup
    if training.schedule == Schedule.constant:
        return training.learning_rate
    share = (done - warmup) / (training.steps - warmup)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def refreshes_curvature(training: TrainingConfig, step: int) -> bool:
    """Whether the curvature is re-estimated before update `step`."""
    return (step - 1) % training.refresh == 0


def _by_block(training: TrainingConfig) -> bool:
    return training.curvature == Curvature.blocks


class StepRule:
    """The optimisers of the configured name over the parameters of `network`: torch.optim's, or pytorch_optimizer's.

    A rule with a curvature matrix is torch.optim.SGD on gradients divided by this
    matrix, which is constant between two refreshes. Muon updates the weight matrices of
    the layers; AdamW then updates embeddings, head and vectors.
    """

    def __init__(self, network: nn.Module, training: TrainingConfig) -> None:
        self._training, self._named = training, dict(network.named_parameters())
        self._optimisers = list(_optimisers(self._named, training))
        self._owners = {}
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    self._owners[id(parameter)] = optimiser
        self._factors = torch.ones(len(self._groups), dtype=torch.float64)
        self._refreshed: dict[str, Tensor] = {}
        self._solver: Solver | None = None

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return list(chain(*(one.param_groups for one in self._optimisers)))

    def refresh_curvature(self, step: int, loss: BatchLoss, *, seed: int) -> None:
        """Estimate the curvature before update `step` if due: at the first and after every training.refresh updates.

        The gradients of `loss` must exist; they are not changed.
        """
        kind = self._training.curvature
        due = refreshes_curvature(self._training, step)
        if kind != Curvature.none and due:
            self._factors = factors(kind, self._named, loss, seed=seed, step=step)
        if self._training.optimiser.facts.divides and (due or self._solver is None):
            if due:
                for name, one in self._named.items():
                    self._refreshed[name] = one.detach().clone()
            with self._at(self._refreshed):
                self._solver = solver(
                    self._training.optimiser, loss, self._training.damping
                )

    def update(self, step: int) -> float:
        """Take update `step` along the current gradients; return its learning rate (the geometric mean)."""
        rate = learning_rate(self._training, step)
        for group, factor in zip(self._groups, self._factors.tolist(), strict=True):
            group["lr"] = rate * factor
        parameters = list(self._named.values())
        if self._training.clip_norm:
            nn.utils.clip_grad_norm_(parameters, self._training.clip_norm)
        if self._solver is not None:
            slopes = [
                torch.zeros_like(p) if p.grad is None else p.grad for p in parameters
            ]
            for parameter, direction in zip(
                parameters, self._solver(slopes), strict=True
            ):
                # Fused kernels take a gradient as it lies in memory.
                parameter.grad = direction.contiguous()
        for optimiser in self._optimisers:
            optimiser.step()
        self._put_back(self._kept())
        return rate * (1.0 if _by_block(self._training) else float(self._factors[0]))

    def moments(self) -> dict[str, Tensor]:
        """Return {moment/parameter: tensor}; empty before the first update, and for rules without moments.

        A rule that uses the curvature adds FACTORS, the factors of the groups' learning
        rates. A rule that divides by a curvature matrix adds REFRESHED/parameter, the
        weights at which the matrix was computed.
        """
        moments = {}
        if self._training.curvature != Curvature.none:
            moments[FACTORS] = self._factors
        for name, weight in self._refreshed.items():
            moments[f"{REFRESHED}/{name}"] = weight
        return moments | self._kept()

    def restore(self, moments: Mapping[str, Tensor], step: int) -> None:
        """Restore what `moments` returned after `step` updates."""
        facts = self._training.optimiser.facts
        self._factors = moments.get(FACTORS, self._factors)
        self._refreshed = {}
        kept = {}
        for key, one in moments.items():
            head, _, name = key.partition("/")
            if head == REFRESHED:
                self._refreshed[name] = row_major(one.clone())
            elif key != FACTORS:
                kept[key] = one.clone()
        self._solver = None
        self._put_back(kept)
        for parameter in self._named.values():
            state = self._state(parameter)
            if "exp_avg" in state and not facts.is_of_extra:
                state["step"] = torch.tensor(float(step), device=parameter.device)
            if state:
                state |= facts.state(self._training)
                for moment in facts.by_axis:
                    _put(state, moment, None, parameter.ndim)
        if facts.is_of_extra:
            for group in self._groups:
                group["step"] = step

    def _kept(self) -> dict[str, Tensor]:
        """Return the moments that the optimisers store for the parameters."""
        kept: dict[str, Tensor] = {}
        for name, parameter in self._named.items():
            state = self._state(parameter)
            for moment in self._training.optimiser.facts.moments:
                kept.update(_tensors(state.get(moment), moment, name))
        return kept

    def _put_back(self, kept: Mapping[str, Tensor]) -> None:
        """Return the result of `_kept` to the optimisers, in one memory order even if a run was interrupted."""
        for key, tensor in kept.items():
            moment, _, name = key.partition("/")
            parameter = self._named[name]
            _put(
                self._state(parameter),
                moment,
                tensor.to(parameter.device),
                parameter.ndim,
            )

    def _state(self, parameter: Tensor) -> dict[str, Any]:
        """Return the state of a parameter in its optimiser."""
        state: dict[str, Any] = self._owners[id(parameter)].state[parameter]
        return state

    @contextmanager
    def _at(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Set the network to `weights` within the block; its own weights are restored at the end."""
        before = {name: one.detach().clone() for name, one in self._named.items()}
        try:
            _copy(weights, self._named)
            yield
        finally:
            _copy(before, self._named)


@torch.no_grad()
def _copy(weights: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> None:
    for name, parameter in named.items():
        parameter.copy_(weights[name])


def _tensors(value: Any, moment: str, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield a moment under its name; a list of matrices, one per axis of the parameter, under moment.AXIS."""
    if isinstance(value, list):
        for axis, one in enumerate(value):
            if len(one):
                yield f"{moment}.{axis}/{name}", one
    elif value is not None:
        yield f"{moment}/{name}", value


def _put(state: dict[str, Any], moment: str, tensor: Tensor | None, axes: int) -> None:
    name, _, axis = moment.partition(".")
    if axis or tensor is None:
        state.setdefault(name, [[] for _ in range(axes)])
    if tensor is not None and axis:
        state[name][int(axis)] = laid_out(name, tensor)
    elif tensor is not None:
        state[name] = laid_out(name, tensor)


def laid_out(moment: str, tensor: Tensor) -> Tensor:
    """Return a moment in the memory order that it has in every run: by rows, but by columns for eigenbases.

    LAPACK returns eigenbases by columns; by rows, trainings would differ in their bits
    from earlier versions.
    """
    if moment == EIGENBASES:
        return row_major(tensor.mT).mT
    return row_major(tensor)


def _optimisers(
    named: Mapping[str, nn.Parameter], training: TrainingConfig
) -> Iterator[torch.optim.Optimizer]:
    facts = training.optimiser.facts
    parameters = list(named.values())
    package = import_module(facts.package)  # slow for optional packages
    every: dict[str, Any] = {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
    }
    read = {}
    for name in ("betas", "eps", "momentum"):
        if name in facts.reads:
            read[name] = getattr(training, name)
    if facts.of_matrices:
        # So both take one rate.
        matrices = _hidden_matrices(named)
        of_both = {"adjust_lr_fn": "match_rms_adamw"}
        yield getattr(package, facts.of_matrices)(
            matrices, **every, momentum=read.pop("momentum"), **of_both
        )
        updated = set(matrices)
        parameters = [one for one in parameters if one not in updated]
    groups: Any = parameters
    if _by_block(training):
        groups = [{"params": [one]} for one in parameters]
    if parameters:
        yield getattr(package, facts.made_by)(groups, **every, **read, **facts.options)


def _hidden_matrices(named: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    """Return the matrices of the layers, or all matrices of a network without layers."""
    matrices = {name: one for name, one in named.items() if one.ndim == 2}
    inside = [one for name, one in matrices.items() if name.startswith("layers.")]
    return inside or list(matrices.values())
