"""From the runs of bench_norms.py to what each engine costs and how far it is off, and the table of that."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from bench_engines import DEFAULT, EXACT, PUBLISHED, PUBLISHED_2
from benchmarking import TOY_WORDS

Run = dict[str, Any]
Runs = dict[str, list[Run]]
Keys = list[tuple[int, str]]
COLUMNS = ("engine", "s / cell", "x", "x, 2 threads", "sem", "rms off", "s, equal error", "x", "peak GiB")


def summaries(runs: Runs) -> dict[str, Run]:
    """Return what each engine costs and how far it is off, next to the published recipe."""
    found = {name: _cost(each) | _error(each, runs) for name, each in runs.items()}
    published = found[PUBLISHED]
    for row in found.values():
        row["faster_than_published"] = published["seconds"] / row["seconds"]
        if PUBLISHED_2 in found:
            row["faster_than_published_2_threads"] = found[PUBLISHED_2]["seconds"] / row["seconds"]
        row["memory_below_published"] = published["peak_gib"] / row["peak_gib"]
    return found


def _cost(each: list[Run]) -> dict[str, Any]:
    return {
        "seconds": median(run["seconds"] for run in each),
        "all_seconds": [run["seconds"] for run in each],
        "cpu_seconds": median(run["cpu_seconds"] for run in each),
        "peak_gib": max(run["peak_gib"] for run in each),
        "base_gib": max(run["base_gib"] for run in each),
    }


def _error(each: list[Run], runs: Runs) -> dict[str, Any]:
    """Compare the numbers whose norm is not zero; the published recipe's error is taken on the same numbers."""
    keys = _nonzero(runs)
    sampled = [(index, key) for index, key in keys if each[index]["numbers"][key]["sem"]]
    seconds = median(run["seconds"] for run in each)
    return {
        "numbers": len(keys) // len(each),
        "sampled_numbers": len(sampled) / len(each),
        "relative_sem": _relative_sem(each, keys),
        **_deviations(each, runs, keys),
        "cost_at_equal_error": _equal_error(seconds, each, runs[PUBLISHED], keys) if sampled else None,
        "cost_at_equal_error_sampled": _equal_error(seconds, each, runs[PUBLISHED], sampled),
    }


def _nonzero(runs: Runs) -> Keys:
    reference = runs.get(EXACT, runs[DEFAULT])
    return [(i, key) for i, run in enumerate(reference) for key, n in run["numbers"].items() if n["frob"]]


def _relative_sem(each: list[Run], keys: Keys) -> float:
    numbers = [each[index]["numbers"][key] for index, key in keys]
    return mean(number["sem"] / number["frob"] for number in numbers)


def _equal_error(seconds: float, each: list[Run], published: list[Run], keys: Keys) -> float | None:
    if not keys:
        return None
    return seconds * (_relative_sem(each, keys) / _relative_sem(published, keys)) ** 2


def _deviations(each: list[Run], runs: Runs, keys: Keys) -> dict[str, Any]:
    if EXACT not in runs:
        return {"rms_deviation": None, "worst_deviation": None}
    pairs = [(each[i]["numbers"][key]["frob"], runs[EXACT][i]["numbers"][key]["frob"]) for i, key in keys]
    off = [abs(found / exact - 1) for found, exact in pairs]
    return {"rms_deviation": mean(x * x for x in off) ** 0.5, "worst_deviation": max(off)}


def print_table(report: dict[str, Any]) -> None:
    """Print one row per engine; x is how many times less than the published recipe on one thread."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(*COLUMNS, title=TOY_WORDS if report["quick"] else None)
    for name, row in report["engines"].items():
        shown.add_row(name, *_cells(row, report["engines"][PUBLISHED]))
    console = Console(width=130)
    console.print(shown)
    for name, rate in report["product_gflops"].items():
        console.print(f"{name}: {rate:.1f} GFLOP/s on one thread", highlight=False)


def _cells(row: Run, published: Run) -> list[str]:
    cost = row["cost_at_equal_error"]
    return [
        f"{row['seconds']:.3g}",
        f"{row['faster_than_published']:.2f}",
        f"{row['faster_than_published_2_threads']:.2f}" if "faster_than_published_2_threads" in row else "",
        f"{row['relative_sem']:.2%}" if row["sampled_numbers"] else "exact",
        "" if row["rms_deviation"] is None else f"{row['rms_deviation']:.1e}",
        "" if cost is None else f"{cost:.3g}",
        "" if cost is None else f"{published['cost_at_equal_error'] / cost:.2f}",
        f"{row['peak_gib']:.2f}",
    ]
