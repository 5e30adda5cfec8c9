"""Measure every shipped sweep at toy size, by every estimator and with every quantity, and draw every figure from it.

    python scripts/toy_sweeps.py FOLDER [--command PATH/hessfig] [--only NAME ...]

With the command of another version, its numbers and pictures can be compared with those of this one:

    python scripts/same_numbers.py OLD/outputs NEW/outputs

Runs whose outputs are there already say how many of their cells are reused. Prints one line per run, exits with 1 when
one fails. A quarter of an hour on two cores, if they have nothing else to do.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hessfig.config.compose.job import compose
from hessfig.config.presets import choices
from hessfig.errors import UserError
from hessfig.sweep.limits import unread_setting
from hessfig.sweep.plan import Sweep

SMALL = {
    **{"model.d_model": 4, "task.digits": 1, "task.batch_size": 3, "seeds": 2, "grid.values": "[0.1,1.0]"},
    **{"spectrum.num_probes": 2},
}
TRAINED = {
    **{"state.step": "[1,3]", "training.steps": 3, "training.warmup": 1, "training.batch_size": 4},
    **{"training.evaluation_size": 8},
}
ALONG_SAMPLES = {
    **{"task.batch_size": 6, "landscape.permutations": 5, "landscape.points": 4, "landscape.draws": 2},
    **{"landscape.first": 1, "landscape.curvatures": 1},
}
GPT2 = {"model.n_layers": 2, "model.n_heads": 2, "model.vocabulary": 5, "task.length": 4}
ESTIMATORS = ("auto", "aligned", "hutchinson", "dense", "exact", "xtrace")
_MIXED = {"model.n_heads": 2, "model.n_layers": 2}
NETWORKS: dict[str, dict[str, object]] = {
    "mlp": {"model": "mlp", "blocks": "each"},
    "vit": {"model": "vit", "task": "digits", "task.batch_size": 8, "model.patch": 4},
    "linear_mlp": {"model": "linear_mlp", "blocks": "[W]"},
    "self_attention": {"model": "self_attention", "task": "gaussian"},
    "post_heads": {**_MIXED, "model.norm": "post"},
    "sink": {"model.sink": "both", "model.sink_beta": 2, "model.norm": "pre"},
    "float32": {**_MIXED, "dtype": "float32"},
    "curvlinops": {**_MIXED, "estimator.products": "curvlinops"},
    "groups": {**_MIXED, "blocks": "[all,layer,attention,mlp]", "model.norm": "pre"},
    "pairs": {**_MIXED, "blocks": "[[W_V@1,W_V@2],[W_Q,W_V]]", "only": "frobenius"},
}
INITIAL = {
    "norms": "frobenius,trace,hessian,loss",
    "spectrum": "spectrum,density",
    "extremes": "largest_eigenvalue,smallest_eigenvalue",
}
_STATE = "loss,accuracy,gradient_norm,weight_norm,residual_norm,score_spread,gradient_covariance,batch_sharpness"
TRAININGS: dict[str, tuple[str, dict[str, object]]] = {
    "adamw": (f"{_STATE},critical_step,preconditioned_eigenvalue,stability_threshold", {}),
    "sgd": (f"{_STATE},critical_step,stability_threshold", {}),
    "gd": ("loss,largest_eigenvalue,stability_threshold", {}),
    "whole": ("loss,training_cost,largest_eigenvalue", {"training.curvature": "whole"}),
    "blocks": ("loss,training_cost,largest_eigenvalue", {"training.curvature": "blocks"}),
}


def main() -> None:
    """Run and draw everything, or what `--only` names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--command", default=Path(sys.executable).with_name("hessfig"))
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sound = [
        carried_out(name, [str(options.command), *words], options.folder)
        for name, words in commands()
        if not options.only or name in options.only
    ]
    raise SystemExit(0 if sound and all(sound) else 1)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the words of every run, then of every figure."""
    for sweep in choices("sweep"):
        if sweep != "network":
            yield sweep, ["run", f"sweep={sweep}", *_words(toy(sweep))]
    for name, own in _own_runs():
        settings = read_alone("sigma", {**SMALL, **own})
        yield name, ["run", "sweep=sigma", f"sweep.name={name}", *_words(settings)]
    for figure in choices("figure"):
        if figure != "none":
            yield f"figure {figure}", ["plot", f"figure={figure}", "figure.formats=[png]"]


def carried_out(name: str, command: list[str], folder: Path) -> bool:
    """Run one command in `folder`; print its name, seconds and what it counted."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    counts = re.findall(r"\d+ cells measured, \d+ reused, \d+ failed", done.stdout)
    said = counts[-1] if counts else ("drawn" if done.returncode == 0 else done.stderr.strip().partition(chr(10))[0])
    print(f"{name}: exit {done.returncode}, {time.perf_counter() - started:.1f} s, {said}", flush=True)
    return done.returncode == 0


def _own_runs() -> Iterator[tuple[str, dict[str, object]]]:
    for estimator in ESTIMATORS:
        quantity = "trace" if estimator == "xtrace" else "frobenius"
        own = {"estimator": estimator, "estimator.num_probes": 6, "quantities": f"[{quantity}]"}
        yield f"by_{estimator}", {"model.d_model": 8, **own}
    for network, own in NETWORKS.items():
        only = own.get("only")
        settings = {key: value for key, value in own.items() if key != "only"}
        for name, quantities in {"norms": only}.items() if only else INITIAL.items():
            yield f"of_{network}_{name}", {"quantities": f"[{quantities}]", **settings}
    for training, (quantities, own) in TRAININGS.items():
        chosen = training if training in ("adamw", "sgd", "gd") else "adamw"
        settings = {"state": "trained", "training": chosen, **TRAINED, **own, "sweep.axis": "step"}
        yield f"trained_{training}", {**settings, "blocks": "[all]", "quantities": f"[{quantities}]"}


def toy(sweep: str) -> dict[str, object]:
    """Return the settings of a shipped sweep at toy size."""
    text = (Path(__file__).parents[1] / "conf" / "sweep" / f"{sweep}.yaml").read_text()
    found: dict[str, object] = dict(SMALL)
    if sweep in ("heads", "heads_zeros", "model_size_heads", "approximations_heads", "ratio_scale"):
        found["model.d_model"] = 16
    if sweep == "model_size_width":
        del found["model.d_model"]
        found["sweep.vary"] = "{model.d_model: [4, 6]}"
    if sweep == "gpt2" or "model: huggingface" in text:
        found |= GPT2
    if "task: masked_tokens" in text:
        found |= {"model.path": "null", "model.architecture": "bert"}
    if "override /model: vit" in text:
        found["task.batch_size"] = 8
    if "override /state: trained" in text:
        found |= TRAINED
    if "vary: {training.batch_size" in text:
        del found["training.batch_size"]
        found["sweep.vary"] = "{training.batch_size: [4, 8]}"
    if "axis: index" in text:
        found |= ALONG_SAMPLES
    return read_alone(sweep, found)


def read_alone(sweep: str, given: dict[str, object]) -> dict[str, object]:
    """Return the settings that something in a sweep reads: others are refused when they are given."""
    try:
        variants = Sweep(compose([f"sweep={sweep}", *_words(given)]).variants).variants
    except UserError:  # a network of the user's own has to be named first
        return given
    dotted = [key for key in given if "." in key and not key.startswith("sweep.")]
    idle = {key for key in dotted if all(unread_setting(variant, key) for variant in variants)}
    return {key: value for key, value in given.items() if key not in idle}


def _words(settings: dict[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


if __name__ == "__main__":
    main()
