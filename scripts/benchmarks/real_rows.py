"""The rows of real.py: each measures one thing in its own process, through the package's public interface."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from statistics import median
from typing import Any

import real_networks
import runner
import torch
from real_networks import SHAPES, TINY, Batch, Shape, loss_of
from runner import Run
from torch import Tensor, nn

import hessfig

Multiply = Callable[[Tensor], Tensor]
PLAIN = "plain double backward"
MOST = 15.0  # seconds of repeats of one row
COMMAND = [
    sys.executable,
    "-W",
    "ignore",
    "-c",
    "from hessfig.cli.main import main; main()",
]


@dataclass(frozen=True)
class Place:
    """Where a row is measured, and whether at toy size."""

    device: str
    quick: bool

    def shape(self, name: str | None = None) -> Shape:
        """Return a shape by name: by default that of products on this device."""
        if self.quick:
            return replace(TINY, kind=SHAPES[name or "small"].kind)
        return SHAPES[name or ("small" if self.device == "cpu" else "gpt2")]

    @property
    def clock(self) -> str:
        """CPU time where one thread computes, else that of a wall clock."""
        return "cpu_seconds" if self.device == "cpu" else "seconds"

    def once(self, work: Callable[[], Any]) -> tuple[Any, Run]:
        """Call `work`; return its result, its seconds, and the GiB in use at most meanwhile (on Linux)."""
        self.forget_peak()
        result, times = runner.timed(work, self.device)
        return result, {
            "seconds": times["seconds"],
            "peak_gib": runner.peak_gib(self.device),
        }

    def forget_peak(self) -> None:
        """Let the peak of memory be what is held now; on the CPU Linux can do so."""
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        elif (refs := Path("/proc/self/clear_refs")).exists():
            refs.write_text("5")

    def held(self) -> float:
        """Return the GiB in use now."""
        self.forget_peak()
        return runner.peak_gib(self.device)

    def medians(self, works: Mapping[str, Callable[[], Any]]) -> Run:
        """Return the median time of each of `works`, called in turn: 5 rounds after 1, or 20 after 5 on a card."""
        warm, most = (1, 5) if self.device == "cpu" else (5, 20)
        times: dict[str, list[float]] = {name: [] for name in works}
        end = time.monotonic() + MOST
        for number in range(warm + (2 if self.quick else most)):
            for name, work in works.items():
                took = runner.timed(work, self.device)[1][self.clock]
                times[name] += [took] if number >= warm else []
            if time.monotonic() > end and number >= warm + 2:
                break
        return {
            **{name: median(each) for name, each in times.items()},
            "repeats": len(times[next(iter(works))]),
        }


def product(
    place: Place,
    contender: str,
    *,
    parts: Sequence[str] = ("H",),
    batches: int = 1,
    micro: bool = False,
    block: str = "all",
    shape: str | None = None,
    attention: str = "eager",
) -> Run:
    """Measure one product of a contender next to the gradient of the same loss."""
    network, tokens = real_networks.language_model(
        place.shape(shape), place.device, attention
    )
    whole = {"input_ids": tokens, "labels": tokens}
    late = block == "late"
    gradient = partial(_gradient, network, whole)
    count = sum(parameter.numel() for parameter in network.parameters())
    _, of_gradient = place.once(gradient)
    found = {
        "parameters": count,
        "tokens": tokens.numel(),
        "gradient_peak_gib": of_gradient["peak_gib"],
    }
    if contender == "gradient":
        return found | place.medians({"gradient": gradient})
    make = partial(_peer, contender, network, tokens)
    if contender == "hessfig":
        path = _late(network) if late else "all"
        problem = _problem(network, tokens, batches)
        if micro:  # a sequence at a time, whose graphs are made anew for every product
            problem = replace(
                problem, memory=_text(_estimated(problem, place.device, 1))
            )
        make = partial(_ours, problem, path, parts, place.device)
    vector = _vector(network, _late(network) if late else None)
    multiply, built = place.once(make)
    curvature, first = place.once(
        lambda: float((multiply(vector) * vector).sum(dtype=torch.float64))
    )
    _, second = place.once(lambda: multiply(vector))
    times = place.medians({"gradient": gradient, "seconds": lambda: multiply(vector)})
    found |= {
        "build": built["seconds"],
        "build_peak_gib": built["peak_gib"],
        "first": first["seconds"],
        **times,
    }
    found |= {
        "peak_gib": second["peak_gib"],
        "first_peak_gib": first["peak_gib"],
        "curvature": curvature,
    }
    found["gradients"] = times["seconds"] / times["gradient"]
    return found | {"comparable": not late and shape is None}


def memory(place: Place, batches: int = 1, length: int | None = None) -> Run:
    """Return the memory that a product takes beyond what was in use before, and hessfig's own estimate of it."""
    shape = place.shape() if length is None else replace(place.shape(), length=length)
    network, tokens = real_networks.language_model(
        replace(shape, sequences=4 * batches), place.device
    )
    estimated = _estimated(_problem(network, tokens[:4], 1), place.device, 4)
    # Of one batch, however many.
    problem = replace(_problem(network, tokens, batches), memory=_text(estimated))
    vector = _vector(network)
    start = place.held()
    operator, built = place.once(
        lambda: problem.operator("all", dtype="float32", device=place.device)
    )
    before = place.held()
    # Which builds the graphs that are kept.
    checked = place.once(lambda: operator @ vector)[1]
    peak = place.once(lambda: operator @ vector)[1]["peak_gib"]
    found = {
        "held_gib": before,
        "peak_gib": peak,
        "taken_gib": peak - before,
        "estimated_gib": estimated / 2**30,
    }
    checks = {
        "comparison_gib": built["peak_gib"] - start,
        "check_gib": checked["peak_gib"] - before,
    }
    return {
        **found,
        **checks,
        "estimated_over_taken": found["estimated_gib"] / max(found["taken_gib"], 1e-9),
    }


def largest_eigenvalue(place: Place, batches: int = 16) -> Run:
    """Measure the largest eigenvalue of all weights to a residual of 1e-3; a batch has 4096 tokens on a card."""
    shape = place.shape("middle" if place.device == "cpu" else None)
    batches = 1 if place.device == "cpu" else 2 if place.quick else batches
    network, tokens = real_networks.language_model(
        replace(shape, sequences=4 * batches), place.device
    )
    problem = _problem(network, tokens, batches)
    vector = _vector(network)
    known: Run = {"parameters": len(vector), "tokens": tokens.numel()}
    # On a card a product takes seconds, and has a row of its own.
    if place.device == "cpu":
        operator = problem.operator("all", dtype="float32")
        known["product_peak_gib"] = place.once(lambda: operator @ vector)[1]["peak_gib"]
        del operator
    settings: dict[str, Any] = {
        "parts": "H",
        "quantities": "largest_eigenvalue",
        "spectrum": {"tolerance": 1e-3},
    }
    table, took = place.once(
        partial(_measured, problem, ["all"], place.device, **settings)
    )
    (entry,) = json.loads(str(table.attrs["arrays"]["largest_eigenvalue"]["entries"]))
    row = table.iloc[0]
    known |= {
        "value": float(row["value"]),
        "residual": float(row["error"] / abs(row["value"])),
    }
    if "product_peak_gib" in known:
        known["vectors_beyond_a_product"] = (
            (took["peak_gib"] - known["product_peak_gib"]) * 2**30 / (4 * len(vector))
        )
    counts = {
        name: entry[name]
        for name in ("products", "rough_products", "converged")
        if name in entry
    }
    return {
        **known,
        **took,
        "host_gib": runner.peak_gib(),
        **counts,
        "status": str(row["status"]),
    }


def norms(place: Place, num_probes: int, names: list[str]) -> Run:
    """Measure the Frobenius norms of H, H_o and H_f of every matrix of the layers."""
    network, tokens = real_networks.language_model(place.shape(), place.device)
    problem = hessfig.Problem(
        network, {"input_ids": tokens, "labels": tokens}, weights="found"
    )
    settings: dict[str, Any] = {"num_probes": num_probes, "estimator": "hutchinson"}
    table, took = place.once(
        partial(_measured, problem, names, place.device, **settings)
    )
    error = float((table["error"] / table["value"]).mean())
    counts = {"numbers": len(table), "ok": int((table["status"] == "ok").sum())}
    return {**counts, **took, "host_gib": runner.peak_gib(), "relative_error": error}


def figure(place: Place, workers: int, device: str | None = None) -> Run:
    """Measure the seconds of `make figure-3a`: the run of its sweep with a number of workers, then the figure."""
    device = device or place.device
    words = [
        "sweep=sigma",
        f"device={device}",
        f"workers={workers}",
        "force_workers=true",
    ]
    words += (
        ["seeds=2", "model.d_model=8", "task.digits=1", "task.batch_size=4"]
        if place.quick
        else []
    )
    with tempfile.TemporaryDirectory() as folder:
        measure = [*COMMAND, "run", *words, f"output_dir={folder}"]
        run = runner.timed(
            partial(runner.said, measure, dict(os.environ), folder=Path(folder))
        )[1]["seconds"]
        plot = [*COMMAND, "plot", "figure=3a", "sweep=sigma", f"output_dir={folder}"]
        drawn = runner.timed(
            partial(runner.said, plot, dict(os.environ), folder=Path(folder))
        )[1]["seconds"]
    return {
        "run_seconds": run,
        "plot_seconds": drawn,
        "seconds": run + drawn,
        "workers": workers,
    }


def _problem(network: nn.Module, tokens: Tensor, batches: int) -> hessfig.Problem:
    return hessfig.Problem(
        network, [{"input_ids": some, "labels": some} for some in tokens.chunk(batches)]
    )


def _estimated(problem: hessfig.Problem, device: str, samples: int) -> float:
    """Return hessfig's estimate of the bytes of a product on a batch of samples."""
    from hessfig.curvature.large.own_column import LargeNetwork, head_of

    objective = problem.objective("float32").on(torch.device(device))
    memory = LargeNetwork(objective, head_of(objective)).memory()
    assert memory is not None
    return memory.peak(samples)


def _text(size: float) -> str:
    """Return a number of bytes, and a hundredth more, as memory= takes it."""
    return f"{1.01e-3 * size:.0f}KB"


def _measured(
    problem: hessfig.Problem, blocks: list[str], device: str, **settings: Any
) -> Any:
    return hessfig.measure(
        problem, blocks=blocks, dtype="float32", device=device, **settings
    )


def _ours(
    problem: hessfig.Problem, block: str, parts: Sequence[str], device: str
) -> Multiply:
    """Return what multiplies a vector by the sum of the parts."""
    operator = problem.operator(block, parts[0], dtype="float32", device=device)
    if len(parts) == 1:
        return lambda vector: operator @ vector
    return lambda vector: reduce(torch.add, operator.split(vector, parts).values())


def _peer(contender: str, network: nn.Module, tokens: Tensor) -> Multiply:
    """Return what multiplies a vector by H, as another package does it, or plain double backward."""
    parameters = list(network.parameters())
    if contender == PLAIN:
        return _doubly(
            partial(loss_of, network, {"input_ids": tokens, "labels": tokens}),
            parameters,
        )
    from peers import PRODUCTS

    multiply = PRODUCTS[contender](_Logits(network), tokens, tokens[:, 1:], parameters)
    return lambda vector: _flat(multiply(_like(vector, parameters)))


class _Logits(nn.Module):
    """The network as other packages take it: from tokens to the logits that enter the loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.network(input_ids=tokens).logits[:, :-1]
        return logits


def _doubly(loss: Callable[[], Tensor], parameters: Sequence[nn.Parameter]) -> Multiply:
    """Return what multiplies by H with a graph of the gradient made for every product."""

    def multiply(vector: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
            gradients = torch.autograd.grad(loss(), parameters, create_graph=True)
            along = torch.stack(
                [
                    (g * v).sum()
                    for g, v in zip(gradients, _like(vector, parameters), strict=True)
                ]
            ).sum()
            return _flat(torch.autograd.grad(along, parameters, materialize_grads=True))

    return multiply


def _gradient(network: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss_of(network, batch), list(network.parameters()))


def _late(network: nn.Module) -> str:
    """Return the name of the last matrix of the last layer."""
    return [
        name for name, parameter in network.named_parameters() if parameter.ndim == 2
    ][-1]


def _vector(network: nn.Module, name: str | None = None) -> Tensor:
    """Return the same random vector for everybody, of all parameters or of one."""
    if name is None:
        chosen = list(network.parameters())
    else:
        chosen = [network.get_parameter(name)]
    device = chosen[0].device
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(
        sum(one.numel() for one in chosen), generator=generator, device=device
    )


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _like(vector: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return a vector as tensors of the shapes of the parameters."""
    shapes = [parameter.shape for parameter in parameters]
    return [
        piece.view(shape)
        for piece, shape in zip(
            vector.split([s.numel() for s in shapes]), shapes, strict=True
        )
    ]
