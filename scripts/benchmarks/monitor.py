"""What hessfig.Monitor costs a training, and whether it changes it: a plain loop, a Trainer, and a Lightning training.

    python scripts/benchmarks/monitor.py    # 200 steps each; the extra `monitor` brings the two trainers

Every training of a small GPT-2 with dropout is a process of its own, on one thread: alone, watched with each bound of
`--max-fractions`, watched without a bound, and watched, killed (signal 9) and started again from its last checkpoint.
`bits` is the hash of the weights at the end; `spent` the share of the training's time that the manifest says was
measured (the first measurement, which no bound holds, included); `overhead` the processor seconds of the loop beside
those of the training alone, which other work on the machine disturbs less than `seconds`. Medians over rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import runner

from hessfig.sweep.pool import THREADS

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {"plain": "transformers", "trainer": "accelerate", "lightning": "lightning"}
VOCABULARY, LENGTH, EXAMPLES, MEASURED = 64, 32, 512, 4
SIZES = ("steps", "every", "width", "batch")
TIMES = {"seconds", "cpu_seconds", "set-up", "spent"}


@dataclass(frozen=True)
class Training:
    """A training in a folder of its own; `max_fraction` "alone" has no monitor, None no bound. `kill`: 0 is never."""

    loop: str
    folder: str
    steps: int
    every: int
    width: int
    batch: int
    max_fraction: float | str | None = "alone"
    kill: int = 0
    resume: bool = False

    @property
    def checkpoint(self) -> int:
        """Steps between two checkpoints."""
        return max(1, self.steps // 4)

    def begun(self, step: int) -> None:
        """Die where this training is to be killed."""
        if self.kill and step == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


def main(words: Sequence[str] | None = None) -> None:
    """Train, print and write what the options ask for."""
    toy = {"rounds": 1, "steps": 8, "every": 2, "width": 4, "batch": 4, "loops": ["plain"]}
    options = runner.parse(__doc__, _options, toy, words)
    if options.train:
        print(json.dumps(train(Training(**json.loads(options.train)))))
        return
    lacking = [name for name in options.loops if find_spec(NEEDED[name]) is None]
    found = {name: compared(name, options) for name in options.loops if name not in lacking}
    for loop, row in found.items():
        print(f"{loop}: step {1000 * row['alone']['seconds'] / options.steps:.1f} ms")
        for name, one in row.items():
            print(f"  {name}: " + ", ".join(f"{key} {_short(value)}" for key, value in one.items()))
    settings = (*SIZES, "max_fractions", "rounds")
    report = {**runner.heading(options, settings), "loops": found, "not installed": lacking}
    runner.write_report(options, "monitor", report)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--loops", nargs="+", choices=NEEDED, default=list(NEEDED))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two measurements")
    parser.add_argument("--width", type=int, default=16, help="of the embedding (16: 4864 parameters)")
    parser.add_argument("--batch", type=int, default=192, help="sequences of 32 words in a step")
    parser.add_argument("--max-fractions", nargs="+", type=float, default=[0.05, 0.2])
    parser.add_argument("--folder", type=Path, help="keep the trainings in this new folder")
    parser.add_argument("--train", help=argparse.SUPPRESS)  # one training, in this process


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def compared(loop: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return what each way of training gave, by its name."""
    rounds = []
    for number in range(options.rounds):
        with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as folder:
            rounds.append(_round(loop, Path(folder, f"{loop}-{number}"), options))
    last = rounds[-1]
    for name, row in last.items():
        row |= {key: median(one[name][key] for one in rounds) for key in row.keys() & TIMES}
        row["bits equal"] = {one[name]["bits"] for one in rounds} == {last["alone"]["bits"]}
        if "spent" in row and "kept" not in row:
            row["overhead"] = row["cpu_seconds"] / last["alone"]["cpu_seconds"] - 1
    return last


def _round(loop: str, folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    folder.mkdir(parents=True)
    sizes = {name: getattr(options, name) for name in SIZES}
    first = Training(loop, f"{folder}/alone", **sizes)
    found = {"alone": in_process(first)}
    for share in options.max_fractions:
        bounded = replace(first, folder=f"{folder}/at most {share}", max_fraction=share)
        found[f"at most {share}"] = in_process(bounded)
    free = replace(first, folder=f"{folder}/unbounded", max_fraction=None)
    found["unbounded"] = in_process(free)
    cut = replace(free, folder=f"{folder}/killed", kill=5 * options.steps // 8)
    in_process(cut)
    kept = measured(cut.folder)
    found["killed, restarted"] = in_process(replace(cut, kill=0, resume=True))
    found["killed, restarted"] |= against(kept, measured(cut.folder), measured(free.folder))
    return found


def in_process(training: Training) -> dict[str, Any]:
    """Return what a training gave. Exits with its words if it ends otherwise than it should."""
    words = [sys.executable, "-W", "ignore", __file__, "--train", json.dumps(asdict(training))]
    environment = {**os.environ, **THREADS, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    told = runner.said(words, environment, status=-signal.SIGKILL if training.kill else 0)
    return {} if training.kill else json.loads(told.splitlines()[-1])


def measured(folder: str) -> dict[tuple[Any, ...], float]:
    """Return the values of a table by step, quantity and block."""
    from hessfig import read

    table = read(f"{folder}/mine").table
    names = ["step", "quantity", "row", "col", "part"]
    return {tuple(row[:-1]): row[-1] for row in table[[*names, "value"]].itertuples(index=False, name=None)}


def against(kept: Mapping[Any, float], found: Mapping[Any, float], whole: Mapping[Any, float]) -> dict[str, Any]:
    """Return the steps that a crash left, those after the restart, and how far values are from an undisturbed run's."""
    gaps = [abs(found[key] - value) / abs(value) for key, value in whole.items() if key in found]
    steps = [sorted({int(key[0]) for key in some}) for some in (kept, found)]
    return {"kept": steps[0], "steps": steps[1], "complete": found.keys() == whole.keys(), "largest gap": max(gaps)}


def train(training: Training) -> dict[str, Any]:
    """Train as asked, in this process."""
    import torch

    import hessfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, monitor = small_gpt2(training.width), None
    Path(training.folder).mkdir(exist_ok=True)
    began = time.perf_counter()
    if training.max_fraction != "alone":
        few = {name: words[:MEASURED] for name, words in data().items()}
        share: Any = training.max_fraction
        monitor = hessfig.Monitor(
            *(model, None, few), folder=f"{training.folder}/mine", every=training.every, max_fraction=share
        )
    ready, worked = time.perf_counter(), time.process_time()
    LOOPS[training.loop](training, model, monitor)
    times = {"seconds": time.perf_counter() - ready, "cpu_seconds": time.process_time() - worked}
    found: dict[str, Any] = {**times, "bits": bits(model)}
    if monitor is not None:
        spent, whole = monitor.budget.spent, monitor.budget.training
        counted = len({key[0] for key in measured(training.folder)})
        found |= {"set-up": ready - began, "spent": spent / whole, "measured": counted}
    return found


def small_gpt2(width: int) -> Any:
    """Return a GPT-2 of one layer, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": width, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).train()


def data() -> dict[str, Any]:
    """Return sequences of which each word is a sum of the words before it."""
    import torch

    drawn = torch.randint(0, VOCABULARY, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))
    words = drawn.cumsum(1) % VOCABULARY
    return {"input_ids": words, "labels": words}


def bits(model: Any) -> str:
    """Return the hash of all weights."""
    found = hashlib.sha256()
    for weight in model.parameters():
        found.update(weight.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def _rows(training: Training, step: int) -> Any:
    """Return the examples of a step; its dropout too is drawn from here, so that a restart repeats it."""
    import torch

    torch.manual_seed(step)
    return torch.randint(0, EXAMPLES, (training.batch,))


def plain(training: Training, model: Any, monitor: Any) -> None:
    """Train in a loop as anyone writes it."""
    import torch

    words, first = data()["input_ids"], 0
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stored = Path(training.folder, "checkpoint.pt")
    if training.resume:
        held = torch.load(stored)
        model.load_state_dict(held["model"]), optimiser.load_state_dict(held["optimiser"])
        first = held["step"]
    for step in range(first, training.steps):
        if monitor is not None:
            monitor(step)
        training.begun(step)
        rows = words[_rows(training, step)]
        optimiser.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimiser.step()
        if (step + 1) % training.checkpoint == 0:
            parts = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}
            torch.save(parts, stored)
    if monitor is not None:
        monitor(training.steps)


def trainer(training: Training, model: Any, monitor: Any) -> None:
    """Train by transformers' Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from hessfig.integrations.transformers import MonitorCallback

    class Dying(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            training.begun(state.global_step)

    arguments = TrainingArguments(
        f"{training.folder}/checkpoints",
        max_steps=training.steps,
        per_device_train_batch_size=training.batch,
        save_steps=training.checkpoint,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    words = data()["input_ids"]
    callbacks = [Dying(), *([MonitorCallback(monitor)] if monitor is not None else [])]
    examples = [{"input_ids": one, "labels": one} for one in words]
    loop = Trainer(model, arguments, train_dataset=examples, callbacks=callbacks)
    loop.train(resume_from_checkpoint=training.resume or None)


def lightning(training: Training, model: Any, monitor: Any) -> None:
    """Train by a Lightning Trainer."""
    import torch
    from lightning import pytorch as pl
    from torch.utils.data import DataLoader

    from hessfig.integrations.lightning import MonitorCallback

    words = data()["input_ids"]

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def training_step(self, batch: Any, number: int) -> Any:
            training.begun(self.global_step)
            rows = words[_rows(training, self.global_step)]
            return self.network(input_ids=rows, labels=rows).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    saving = pl.callbacks.ModelCheckpoint(training.folder, save_last=True, every_n_train_steps=training.checkpoint)
    loop = pl.Trainer(
        max_steps=training.steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=training.folder,
        callbacks=[saving, *([MonitorCallback(monitor)] if monitor is not None else [])],
    )
    steps: Any = DataLoader(list(range(training.steps)))  # type: ignore[arg-type]
    loop.fit(Module(), steps, ckpt_path=f"{training.folder}/last.ckpt" if training.resume else None)


LOOPS: dict[str, Callable[[Training, Any, Any], None]] = {"plain": plain, "trainer": trainer, "lightning": lightning}

if __name__ == "__main__":
    main()
