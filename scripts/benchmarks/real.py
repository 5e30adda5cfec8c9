"""Time Hessian-vector products of a GPT-2-small-shaped network next to other packages: seconds and peak memory.

    python scripts/benchmarks/real.py [--length 64] [--products 3] [--dtype float32] [--device cuda]

12 layers, 12 heads, width 768, 50 257 words, random weights: a probe of W_Q and of W_V of layers 1, 6 and 12, and one
product of the whole Hessian, each by every contender in a process of its own (which alone gives a peak of memory), in
turn. `seconds` is the median of --products products after the first, `cpu_seconds` those of this process alone, to be
compared where others compute next to it; `first` is the first product, `build` what came before. `peak_gib` is what the
process held at most, `base_gib` what it held with network and data and nothing else.
`agrees` compares v.Hv with that of the first contender, for the same v. hessfig multiplies by H; hessfig_split by H_o
and H_f at once, which no other package here offers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import runner
from runner import Run

CASES = ("W_Q@1", "W_V@1", "W_Q@6", "W_V@6", "W_Q@12", "W_V@12", "all")
CONTENDERS = ("hessfig", "hessfig_split", "curvlinops", "pyhessian", "eigenthings")
QUICK = {"n_layers": 2, "n_heads": 2, "d_model": 8, "vocabulary": 50, "length": 6}
SIZES = {"n_layers": 12, "n_heads": 12, "d_model": 768, "vocabulary": 50257, "length": 64}
SETTINGS = (*SIZES, "batch_size", "products", "dtype", "device")
COLUMNS = ("seconds", "cpu_seconds", "first", "peak_gib", "base_gib", "agrees")


def main(words: Sequence[str] | None = None) -> None:
    """Measure every contender on every case, print the table, write the JSON."""
    options = runner.parse(__doc__, _options, QUICK, words, **SIZES, rounds=1, allocator="system")
    if options.one is not None:
        print(json.dumps(measured(options, *options.one)))
        return
    there = [case for case in CASES if int(case.partition("@")[2] or 0) <= options.n_layers]
    runs = [
        _in_a_process(options, contender, case)
        for _ in range(options.rounds)
        for case in options.cases or there
        for contender in options.contenders
    ]
    _print(_compared(runs))
    runner.write_report(options, "real", {**runner.heading(options, (*SETTINGS, "quick")), "runs": runs})


def _options(parser: argparse.ArgumentParser) -> None:
    for name, value in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"({value})")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--products", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--device", default="cpu", help=runner.DEVICES)
    parser.add_argument("--cases", nargs="+", help=f"({' '.join(CASES)})")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # contender and case, in this process


def _in_a_process(options: argparse.Namespace, contender: str, case: str) -> Run:
    words = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in SETTINGS]
    command = [sys.executable, __file__, *words, "--one", contender, case]
    try:
        told = runner.said(command, {**os.environ, "OMP_NUM_THREADS": "1"})
    except SystemExit as failure:
        return {"contender": contender, "case": case, "failed": str(failure).strip().splitlines()[-1][:300]}
    found: Run = json.loads(told.strip().splitlines()[-1])
    times = f"{found['seconds']:9.3f} s {found['cpu_seconds']:9.3f} s CPU"
    print(f"{case:8} {contender:14} {times} {found['peak_gib']:7.2f} GiB", flush=True)
    return found


def measured(options: argparse.Namespace, contender: str, case: str) -> Run:
    """Measure one contender on one case in this process."""
    import torch

    torch.set_num_threads(1)
    problem = _problem(options)
    name, _, layer = case.partition("@")
    side = problem.layout.side(int(layer or 0), name)
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(sum(w.size for w in side), 1, generator=generator, dtype=problem.dtype).to(options.device)
    base = runner.peak_gib(options.device)
    make = partial(_contender, contender, problem, int(layer or 0), name)
    product, built = runner.timed(make, options.device)
    first, *others = (runner.timed(partial(product, probe), options.device) for _ in range(1 + options.products))
    return {
        "contender": contender,
        "case": case,
        "build": built["seconds"],
        "first": first[1]["seconds"],
        **runner.medians([times for _, times in others]),
        "base_gib": base,
        "peak_gib": runner.peak_gib(options.device),
        "curvature": others[-1][0],
    }


def _problem(options: argparse.Namespace) -> Any:
    import torch

    from hessfig.config.enums import Data, DType, Scored
    from hessfig.config.schema import Config
    from hessfig.config.science import ModelConfig, TaskConfig
    from hessfig.states.point import drawn

    sizes = {name: getattr(options, name) for name in ("n_layers", "n_heads", "d_model", "vocabulary")}
    task = TaskConfig(data=Data.tokens, scored=Scored.all, length=options.length, batch_size=options.batch_size)
    model = ModelConfig(kind="huggingface", **sizes)
    config = Config(
        model=model, task=task, dtype=DType(options.dtype), device=options.device, blocks="each", memory="1TB"
    )
    return drawn(config, sigma=None, seed=0).to(torch.device(options.device))


def _contender(contender: str, problem: Any, layer: int, name: str) -> Callable[[Any], float]:
    """Return what takes a probe v of the weight and returns v.Hv."""
    from hessfig.curvature.curvlinops import SidedColumn
    from hessfig.curvature.large.headed_column import HeadedColumn
    from hessfig.terms import Part

    if contender.startswith("hessfig"):
        column = HeadedColumn(problem, layer, name, [name])
        parts = [Part.H] if contender == "hessfig" else [Part.H_o, Part.H_f]
        return lambda probe: sum(float((probe * one).sum()) for one in column.split_matmat(probe, parts).values())
    from peers import PRODUCTS

    sides = SidedColumn(problem, layer, name, [name])
    make = PRODUCTS[contender]
    product = make(_Scored(problem.network), problem.batch.inputs, problem.batch.targets, sides.parameters)

    def curvature(probe: Any) -> float:
        vectors = [one[..., 0] for one in sides.spread(probe)]
        return sum(float((v * one).sum()) for v, one in zip(vectors, product(vectors), strict=True))

    return curvature


def _Scored(network: Any) -> Any:
    """Return the network as other packages take one: tokens to the logits that enter the loss."""
    from torch import nn

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network.model

        def forward(self, tokens: Any) -> Any:
            return self.model(input_ids=tokens, use_cache=False).logits[:, :-1]

    return Scored()


def _compared(runs: list[Run]) -> list[Run]:
    """Add to every run how far its v.Hv is from the first contender's."""
    first: dict[str, float] = {}
    for run in runs:
        if "curvature" in run:
            truth = first.setdefault(run["case"], run["curvature"])
            run["agrees"] = abs(run["curvature"] - truth) / max(abs(truth), 1e-300)
    return runs


def _print(runs: list[Run]) -> None:
    print(f"{'case':8} {'contender':14} {' '.join(f'{name:>11}' for name in COLUMNS)}")
    for run in runs:
        numbers = " ".join(f"{run[name]:11.3g}" for name in COLUMNS) if "agrees" in run else run["failed"]
        print(f"{run['case']:8} {run['contender']:14} {numbers}")


if __name__ == "__main__":
    main()
