"""Time one product with a block of the Hessian: hessfig's operator, jvp of grad in torch.func, curvlinops' operator.

All three multiply the same block of the same network with the same vectors, in float64, on one thread, in turn. The
times are the processor's: on one thread these are what a clock shows on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import runner

Multiply = Callable[[Any], Any]


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print and write what the options ask for."""
    options = runner.parse(__doc__, _options, {"rounds": 2, "width": 8, "probes": [1]}, words)
    import torch

    torch.set_num_threads(1)
    rows = []
    for name, (ways, dim) in networks(options.width).items():
        for count in options.probes:
            vectors = torch.randn(dim, count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            rows += timed(name, ways, vectors, options.rounds)
    for row in rows:
        print("{network}, {vectors} vectors, {way}: {ms:.2f} ms, off by {off:.1e}".format(**row))
    settings = ("width", "probes", "rounds")
    runner.write_report(options, "products", {**runner.heading(options, settings), "rows": rows})


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=64, help="d_model of the networks (64)")
    parser.add_argument("--probes", type=int, nargs="+", default=[1, 20], help="vectors per call (1 20)")


def timed(name: str, ways: dict[str, Multiply], vectors: Any, rounds: int) -> list[dict[str, Any]]:
    """Return the median milliseconds of every way, after a warm-up, and how far its products are from the first's."""
    first = next(iter(ways.values()))(vectors)
    off = {way: float((multiply(vectors) - first).norm() / first.norm()) for way, multiply in ways.items()}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(max(rounds, 2)):
        for way, multiply in ways.items():
            taken[way].append(_seconds(multiply, vectors))
    shared = {"network": name, "vectors": vectors.shape[1]}
    return [{**shared, "way": way, "ms": 1e3 * median(times), "off": off[way]} for way, times in taken.items()]


def _seconds(multiply: Multiply, vectors: Any) -> float:
    """Return the processor's seconds for one call, from enough calls for a tenth of a second."""
    calls, began = 0, time.process_time()
    while calls < 3 or time.process_time() - began < 0.1:
        multiply(vectors)
        calls += 1
    return (time.process_time() - began) / calls


def networks(width: int) -> dict[str, tuple[dict[str, Multiply], int]]:
    """Return the ways to multiply, and the block's size, of an MLP and of an encoder layer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 10))
    encoder = nn.Sequential(_encoder(width), nn.Flatten(), nn.Linear(8 * width, 10))
    found = {
        "MLP": (mlp.double(), torch.randn(64, width).double(), "0.weight"),
        "encoder layer": (encoder.double().eval(), torch.randn(32, 8, width).double(), "0.linear1.weight"),
    }
    return {name: _ways(*one) for name, one in found.items()}


def _encoder(width: int) -> Any:
    from torch import nn

    return nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, activation="gelu")


def _ways(network: Any, inputs: Any, path: str) -> tuple[dict[str, Multiply], int]:
    import torch
    from curvlinops import HessianLinearOperator
    from torch.func import functional_call, grad, jvp
    from torch.nn.functional import cross_entropy

    import hessfig

    targets = torch.randint(0, 10, (len(inputs),), generator=torch.Generator().manual_seed(1))
    weight = network.get_parameter(path)
    operator = hessfig.Problem(network, inputs, targets).operator(path, "H")
    settings = {"check_deterministic": False, "num_data": len(inputs)}
    theirs = HessianLinearOperator(network, torch.nn.CrossEntropyLoss(), [weight], [(inputs, targets)], **settings)

    def loss(at: Any) -> Any:
        return cross_entropy(functional_call(network, {path: at}, (inputs,)), targets)

    def forward_over_reverse(vectors: Any) -> Any:
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
            columns = [jvp(grad(loss), (weight.detach(),), (one.view_as(weight),))[1].flatten() for one in vectors.T]
        return torch.stack(columns, dim=1)

    def by_curvlinops(vectors: Any) -> Any:
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
            return theirs @ vectors

    ways = {"hessfig": lambda v: operator @ v, "jvp of grad": forward_over_reverse, "curvlinops": by_curvlinops}
    return ways, weight.numel()


if __name__ == "__main__":
    main()
