"""What each verb does, once its settings are composed and checked."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.cli.overrides import check_overrides, quote_numbers
from hessfig.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

Fixed = dict[str, Any]


def run(verb: str, arguments: list[str]) -> int:
    """Compose the settings with Hydra and carry the verb out; return the exit code."""
    if verb == "verify":
        return _verify(arguments)
    arguments = quote_numbers(arguments)
    fixed = check_overrides(arguments)
    codes: list[int] = []

    def job(composed: DictConfig) -> None:
        logging.getLogger().setLevel(logging.WARNING)  # Hydra lets every library's chatter through
        codes.append(_guarded(lambda: _JOBS[verb](composed, fixed)))

    _with_hydra(verb, arguments, job)
    return max(codes, default=0)


def _guarded(action: Callable[[], int]) -> int:
    """Run `action` and turn what Hydra would print as a traceback into an exit code."""
    try:
        return action()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: finished cells are kept; run the same command to go on", file=sys.stderr)
        return 130


def _with_hydra(verb: str, arguments: list[str], job: Callable[[DictConfig], None]) -> None:
    import hydra

    from hessfig.config.compose import check_composition, register

    register()
    check_composition(arguments)
    sys.argv = [f"hessfig {verb}", *arguments]
    hydra.main(config_path="pkg://hessfig.conf", config_name="config", version_base="1.3")(job)()


def _run(composed: DictConfig, fixed: Fixed) -> int:
    from hessfig.cli.out_of_range import out_of_range
    from hessfig.config.checks import check_device
    from hessfig.config.compose import variants
    from hessfig.sweep import engine, preview

    found = variants(composed, set(fixed))
    check_device(found[0][1].device)
    if found[0][1].dry_run:
        print(preview.describe(found))
        return 0
    summary = engine.run_sweep(found)
    print(preview.summarise(summary))
    for line in out_of_range(summary.table):
        print(line)
    return 1 if summary.failed else 0


def _status(composed: DictConfig, fixed: Fixed) -> int:
    from hessfig.config.compose import variants
    from hessfig.sweep import preview

    print(preview.describe(variants(composed, set(fixed))))
    return 0


def _plot(composed: DictConfig, fixed: Fixed) -> int:
    from hessfig.config.compose import sweep_fit, to_config
    from hessfig.figures.sheets import FigureSpec, draw

    config = to_config(composed)
    figure = config.figure
    if not figure.name:
        raise UserError(
            "no figure chosen", allowed="figure=NAME", remedy="`hessfig plot --help` lists the figures"
        )
    outputs = Path(config.output_dir)
    if figure.layout == "study":
        paths = _study(figure.name, outputs)
    else:
        windows, average = sweep_fit(figure.sweep)
        spec = FigureSpec(figure.name, figure.sweep, figure.layout, windows, figure.options, average)
        paths = draw(spec, outputs)
    for path in paths:
        print(path)
    return 0


def _study(name: str, outputs: Path) -> list[Path]:
    """Compute the tables of a theory study unless they are there (seconds), then draw its figure."""
    if not list((outputs / name).glob("*.csv")):
        import_module(f"hessfig.theory.studies.{name}").run(outputs)
    return import_module(f"hessfig.figures.studies.{name}").draw(outputs)


def _slopes(composed: DictConfig, fixed: Fixed) -> int:
    from hessfig.analysis.slopes import fit as slopes
    from hessfig.cli.terminal import show

    show(slopes.rich_table(_fitted(composed, fixed)))
    return 0


def _check(composed: DictConfig, fixed: Fixed) -> int:
    from hessfig.analysis.slopes import gate

    frame = _fitted(composed, fixed)
    found, drifting = (list_(frame, composed.tolerance) for list_ in (gate.violations, gate.drifts))
    count = len(gate.checked(frame))
    for line in drifting:
        print(f"note: {line}")
    for line in found:
        print(line, file=sys.stderr)
    notes = {"drifting (notes above)": len(drifting), "where no prediction applies": len(frame) - count}
    rest = "".join(f", {number} {what}" for what, number in notes.items() if number)
    print(f"{count} slopes checked, {len(found)} outside tolerance {composed.tolerance:g}{rest}")
    return 1 if found else 0


def _fitted(composed: DictConfig, fixed: Fixed) -> Any:
    from hessfig.analysis.slopes import fit as slopes
    from hessfig.config.compose import matching_folder, to_config

    config = to_config(composed)
    windows = [(low, high) for low, high in config.sweep.windows]
    folder = matching_folder(config.output_dir, config.sweep.name, composed, set(fixed))
    return slopes.run(
        folder,
        windows,
        tolerance=config.tolerance,
        resamples=config.resamples,
        seed=config.first_seed,
        average=config.sweep.average.value,
    )


def _compare(composed: DictConfig, fixed: Fixed) -> int:
    from hessfig.cli.compare import compare_figures, compare_sweep
    from hessfig.config.compose import matching_folder

    if composed.reference is None:
        raise UserError(
            "reference is missing",
            allowed="reference=FILE.csv or reference=FOLDER",
            remedy="name a file of published values, or the folder of the authors' result files",
        )
    reference, outputs = Path(composed.reference), composed.output_dir
    folder_of = partial(matching_folder, outputs, composed=composed, fixed=set(fixed))
    if "sweep" not in fixed and reference.is_dir():
        compare_figures(folder_of, Path(outputs), reference)
    else:
        compare_sweep(folder_of(composed.sweep.name), reference)
    return 0


def _verify(arguments: list[str]) -> int:
    from hessfig.theory.verify.arguments import parse
    from hessfig.theory.verify.run import run as run_statements

    return run_statements(**parse(arguments))


_JOBS: dict[str, Callable[[Any, Fixed], int]] = {
    "run": _run,
    "status": _status,
    "plot": _plot,
    "slopes": _slopes,
    "check": _check,
    "compare": _compare,
}
