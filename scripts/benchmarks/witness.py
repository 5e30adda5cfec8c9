"""Time the comparison of a problem with its user's own function, in gradients of the same loss.

    python scripts/benchmarks/witness.py [--rounds 5]

README's network, a GPT-2 of 332 thousand parameters on 4 x 64 tokens, and one step of hessfig.Monitor on README's:
CPU seconds, the least of the rounds, and the same in gradients. `own` is the user's function alone, `problem` all that
`Problem.objective` does, comparison included; `step` a Monitor's step that measures the loss, `plain` the same without.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import runner
import torch
from torch import nn

import hessfig
from hessfig.models.own.border import Asked
from hessfig.models.own.own_function import OwnFunction

QUICK = {"rounds": 1}


def main(words: Sequence[str] | None = None) -> None:
    """Time every case, print the table, write the JSON."""
    options = runner.parse(__doc__, lambda parser: None, QUICK, words, rounds=5)
    torch.set_num_threads(1)
    found = {name: _timed(options, *make()) for name, make in CASES.items()}
    for name, row in found.items():
        print(name, ", ".join(f"{key} {value:.3g}" for key, value in row.items()))
    runner.write_report(options, "witness", {**runner.heading(options, ("rounds",)), "cases": found})


def _small() -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
    return network, torch.randn(32, 8), torch.randint(0, 3, (32,))


def _gpt2() -> tuple[nn.Module, Any, Any]:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 2000, "n_positions": 64, "n_embd": 64, "n_layer": 4, "n_head": 4}
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    ids = torch.randint(1, 2000, (4, 64))
    return network, {"input_ids": ids, "labels": ids}, None


CASES: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {"README": _small, "GPT-2": _gpt2}


def _timed(options: argparse.Namespace, network: nn.Module, inputs: Any, targets: Any) -> dict[str, float]:
    problem = hessfig.Problem(network, inputs, targets)
    own = OwnFunction(Asked(network, problem.inputs, problem.targets, None))
    held = [*network.parameters()]

    def gradient() -> None:
        outcome = network(inputs) if targets is not None else network(**inputs)
        loss = outcome.loss if targets is None else nn.functional.cross_entropy(outcome, targets)
        torch.autograd.grad(loss, held)

    def compared() -> None:
        own.derivatives({0: 1.0}, 2)
        own.beside({0: 1.0}, 2)

    seconds = {
        "gradient": _least(options, gradient),
        "own": _least(options, compared),
        "problem_float32": _least(options, lambda: problem.objective("float32")),
        "problem_float64": _least(options, lambda: problem.objective("float64")),
        "step": _least(options, _step(network, inputs, targets)),
    }
    per = {f"{name}_in_gradients": one / seconds["gradient"] for name, one in seconds.items() if name != "gradient"}
    return {**{f"{name}_seconds": one for name, one in seconds.items()}, **per}


def _step(network: nn.Module, inputs: Any, targets: Any) -> Callable[[], object]:
    """Return a step of a monitor of the loss, at the next step number each time."""
    batch = inputs if targets is None else (inputs, targets)
    settings: dict[str, Any] = {"every": 1, "max_fraction": None, "quantities": ["loss"], "blocks": ["all"]}
    monitor = hessfig.Monitor(network, None, batch, folder=tempfile.mkdtemp(), **settings)
    steps = iter(range(10**6))
    return lambda: monitor(next(steps))


def _least(options: argparse.Namespace, function: Callable[[], object]) -> float:
    function()
    spent = []
    for _ in range(options.rounds):
        start = time.process_time()
        function()
        spent.append(time.process_time() - start)
    return min(spent)


if __name__ == "__main__":
    main()
