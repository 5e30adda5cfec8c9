"""Compares two runs of the same networks, number by number and curve by curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from hessfig.analysis.axis import short_variant
from hessfig.analysis.comparison.agreement import CURVES, POINTS, AgreementVerdict
from hessfig.analysis.intervals import deviate, probe_deviate, student_interval
from hessfig.analysis.manifest import RecordedRun
from hessfig.analysis.presented import terminal_table
from hessfig.errors import plain
from hessfig.record import CURVE, LEFT_OUT, NUMBER

if TYPE_CHECKING:
    from rich.table import Table


# Relative differences between machines, by type: what is exact in float64, and whatever passes through float32.
ROUNDING = {"float64": 1e-9, "float32": 1e-3}
# NOTE(paper): norms in float32, as the published ones, are roots of mean squares: below this, squares lose digits or
# vanish.
FLOAT32_FLOOR = float(np.sqrt(np.finfo(np.float32).tiny))
_PLACES = ["sigma", "step"]
_PLACED = ["sigma_text", "step_text"]
_PROBES = ["num_probes", "num_probes_reference"]
_BESIDE = ["value", "error", "num_probes", "estimator", "dtype", "status", "config"]
_GROUPS = ("model", "task", "state", "training")
_FREE = ("n_layers",)  # a column of the table
_FROM_FILES = ("path", "factory")  # settings that name a file, whose content enters only the column `config`


def compare_pairs(
    ours: RecordedRun,
    theirs: pd.DataFrame,
    config: Mapping[str, Any] | None,
    *,
    reference: str,
    is_repeat: bool = False,
) -> Paired | None:
    """Compare two runs number by number; None unless both have numbers of the same networks, by settings and seeds.

    `is_repeat`: `theirs` was measured with the settings of `ours`, hence with the same probes: only the numbers
    themselves are matched, and none may differ by more than rounding and the bounds, whatever is stated of it.
    A number is outside when it differs by more than is `allowed`. That is rounding, where both are exact or sampled
    with the same probes, and next to it both errors where these are bounds (residual norms of eigenvalues: an error
    without probes). Where other probes were drawn it is sqrt(ea^2 + eb^2) times what chance explains (Student's t).
    Rounding is that of float32 if one run only had `dtype=float32`: its weights were rounded, also for exact norms.
    A curve is different when one of its numbers is outside, or when its shift, the mean over seeds of the paired
    log-differences, is beyond chance by Student's t over seeds.
    """
    keys = [name for name in NUMBER if name not in _PLACES]
    sides = [placed(side)[[*NUMBER, *_PLACED, *_BESIDE]] for side in (ours.table, theirs)]
    pairs = sides[0].merge(sides[1].drop(columns=_PLACES), on=[*keys, *_PLACED], suffixes=("", "_reference"))
    if pairs.empty or not (is_repeat or _are_same(pairs, ours.config, config)):
        return None
    rounded = _are_rounded_apart(ours.config, config)
    points = _judged(pairs.drop(columns=_PLACED), other_weights=rounded, is_repeat=is_repeat)
    curves = pd.DataFrame(list(_curves(points)))
    unmatched = len(ours.table) - len(pairs), len(theirs) - len(pairs)
    return Paired(str(ours.table["sweep"].iloc[0]), reference, points, curves, unmatched)


def placed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with its places as text of nine digits, so that equal sigmas match however they are written."""
    return table.assign(**{f"{name}_text": table[name].map("{:.9g}".format) for name in _PLACES})


def _are_same(pairs: pd.DataFrame, ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> bool:
    """Whether numbers of equal names are of the same networks, as the manifests say, and the hashes of the cells.

    Manifests alone do where no setting names a file: float32 and float64, or two numbers of probes, have other hashes.
    A setting that one manifest lacks is of another version of hessfig: then the hashes must be equal.
    """
    same_hashes = bool((pairs["config"] == pairs["config_reference"]).all())
    if not ours or theirs is None:
        return same_hashes
    mine, other = (_of_network(config) for config in (ours, theirs))
    same = all(mine[key] == other[key] for key in mine.keys() & other.keys())
    by_files = any(mine.get((group, name)) for group in _GROUPS for name in _FROM_FILES)
    return same and (same_hashes or (mine.keys() == other.keys() and not by_files))


def _are_rounded_apart(ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> bool:
    """Whether the manifests name two types: then weights differ by rounding, even if both norms are float64."""
    return len({config["dtype"] for config in (ours, theirs or {}) if "dtype" in config}) > 1


def _of_network(config: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    settings = ((group, name, value) for group in _GROUPS for name, value in (config.get(group) or {}).items())
    return {(group, name): value for group, name, value in settings if name not in _FREE}


def _judged(pairs: pd.DataFrame, *, other_weights: bool, is_repeat: bool) -> pd.DataFrame:
    """Return the pairs with their differences, z where probes differ, and whether they are outside."""
    a, b = pairs["value"].to_numpy(float), pairs["value_reference"].to_numpy(float)
    size = np.maximum(np.abs(a), np.abs(b))
    identical = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(identical, 0.0, (a - b) / size)
        ratio = np.where((a > 0) & (b > 0), np.log(a / b), 2 * (a - b) / (np.abs(a) + np.abs(b)))
    usable = ~(pairs["status"].isin(LEFT_OUT) | pairs["status_reference"].isin(LEFT_OUT)).to_numpy()
    one_sided = (pairs["status"].isin(LEFT_OUT) != pairs["status_reference"].isin(LEFT_OUT)).to_numpy()
    single = (pairs["dtype"] != "float64") | (pairs["dtype_reference"] != "float64")
    rounding = np.where(single | other_weights, ROUNDING["float32"], ROUNDING["float64"])
    rounded = rounding * size + np.where(single, FLOAT32_FLOOR, 0.0)
    alike = [pairs[name] == pairs[f"{name}_reference"] for name in ("config", "num_probes", "estimator")]
    exact = (pairs["error"] == 0) & (pairs["error_reference"] == 0)
    must_agree = (exact | np.logical_and.reduce(alike) | is_repeat).to_numpy()
    bound = (pairs["error"] + pairs["error_reference"]).where((pairs[_PROBES] == 0).all(axis=1), 0.0).to_numpy(float)
    error = np.sqrt(pairs["error"] ** 2 + pairs["error_reference"] ** 2 + rounded**2).to_numpy(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(usable & ~must_agree, (a - b) / error, np.nan)
    reach = _reach(pairs[_PROBES].replace(0, np.nan).min(axis=1), num_tests=int(np.isfinite(z).sum()))
    allowed = np.where(must_agree, rounded + np.nan_to_num(bound), reach * error)
    return pairs.assign(
        relative=relative,
        log_ratio=np.where(usable, np.where(identical, 0.0, ratio), np.nan),
        z=z,
        rounding=rounding,
        allowed=allowed,
        is_identical=identical & (pairs["status"] == pairs["status_reference"]),
        must_agree=must_agree,
        is_outside=(usable & (np.abs(a - b) > allowed)) | (one_sided & must_agree),
    )


def _reach(probes: pd.Series, *, num_tests: int) -> np.ndarray:
    """Return how many errors a difference may be: chance exceeds this in one of `num_tests` with probability POINTS."""
    level, counts = 1 - POINTS / max(num_tests, 1), probes.clip(lower=2).fillna(0)
    reach = {count: probe_deviate(count, level) if count else deviate(1e6, level) for count in counts.unique()}
    return counts.map(reach).to_numpy(float)


def _curves(points: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield every curve with its shift, the interval of the shift, and its verdict."""
    groups = list(points.groupby(CURVE, sort=False, dropna=False))
    for key, here in groups:
        of_seeds = here.groupby("seed")["log_ratio"].mean().dropna().to_numpy(float)
        interval = student_interval(of_seeds)
        p = float(2 * stdtr(interval.count - 1, -abs(interval.mean) / interval.se)) if interval.se > 0 else np.nan
        summary = {"num_points": len(here), "num_seeds": len(of_seeds), "largest": here["relative"].abs().max()}
        summary |= {"shift": interval.mean, "shift_low": interval.low, "shift_high": interval.high, "p": p}
        summary |= {"largest_z": here["z"].abs().max(), "num_outside": int(here["is_outside"].sum())}
        yield {
            **dict(zip(CURVE, key, strict=True)),
            **summary,
            "verdict": _verdict(here, summary, CURVES / len(groups)),
        }


def _verdict(here: pd.DataFrame, summary: Mapping[str, Any], level: float) -> str:
    if here["is_identical"].all():
        return IDENTICAL
    drawn_anew = not here["must_agree"].all()
    if here["is_outside"].any() or (
        drawn_anew and summary["p"] < level and abs(summary["shift"]) > here["rounding"].max()
    ):
        return DIFFERENT
    if not drawn_anew:
        return ROUNDED
    return AGREES if np.isfinite(summary["p"]) or here["z"].notna().any() else UNDECIDED


IDENTICAL, ROUNDED, DIFFERENT = "identical", "equal to rounding", "different"
AGREES, UNDECIDED = "agrees", "undecided"


@dataclass(frozen=True)
class Paired:
    """The result of a comparison number by number. `points`: one row per number; `curves`: per curve, with its verdict.

    `unmatched`: numbers of each side that the other has not.
    """

    sweep: str
    reference: str
    points: pd.DataFrame
    curves: pd.DataFrame
    unmatched: tuple[int, int]

    @property
    def files(self) -> dict[str, pd.DataFrame]:
        """The tables to be written, by name."""
        return {"paired.csv": self.points, "paired_curves.csv": self.curves}

    @cached_property
    def verdict(self) -> str:
        """The verdict on all numbers: identical only if every number is."""
        verdicts = set(self.curves["verdict"])
        if DIFFERENT in verdicts:
            return AgreementVerdict.differs
        if verdicts == {IDENTICAL}:
            return IDENTICAL
        return AgreementVerdict.agrees if verdicts & {IDENTICAL, ROUNDED, AGREES} else AgreementVerdict.undecided

    def sentence(self) -> str:
        """Return the verdict and its reasons in one line."""
        count, same = len(self.points), int(self.points["is_identical"].sum())
        if self.verdict == IDENTICAL:
            return f"identical: all {count} numbers are equal to the bit (difference 0)"
        worst = self.curves.loc[self.curves["shift"].abs().fillna(0.0).idxmax()]
        kinds = ", ".join(f"{number} {word}" for word, number in self.curves["verdict"].value_counts().items())
        largest = f"largest difference of a number {self.points['relative'].abs().max():.2g} (relative)"
        shift = f"largest shift of a curve {_interval(worst)} ({curve_words(worst)})"
        return f"{self.verdict}: curves: {kinds}; {same} of {count} numbers equal to the bit; {largest}; {shift}"

    def notes(self) -> list[str]:
        """Return a line on the method of comparison, and one on numbers that were not compared."""
        seeds = self.points["seed"].nunique()
        return [
            f"same settings and {seeds} seed{'s' * (seeds != 1)} on both sides: compared number by number",
            f"without a partner: {self.unmatched[0]} numbers of ours, {self.unmatched[1]} of {self.reference}",
        ]

    def rich_table(self) -> Table:
        """Return the curves as a table for a terminal."""
        from rich.text import Text

        rows = [list(map(Text, _cells(row))) for _, row in self.curves.iterrows()]
        title = Text(f"{self.sweep} against {self.reference}, number by number")
        heads = ("curve", "numbers", "largest difference", "shift [95 %]", "verdict")
        return terminal_table(heads, rows, title=title, wrapped=["curve"])


def _cells(row: pd.Series) -> tuple[str, ...]:
    return curve_words(row), str(row["num_points"]), f"{row['largest']:.2g}", _interval(row), row["verdict"]


def _interval(row: pd.Series) -> str:
    shift, low, high = (100 * np.expm1(row[name]) for name in ("shift", "shift_low", "shift_high"))
    if row["verdict"] == IDENTICAL or not np.isfinite(shift):
        return "0" if row["verdict"] == IDENTICAL else ""
    return f"{shift:+.3g} %" + (f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else "")


def curve_words(row: pd.Series) -> str:
    block = row["row"] if row["row"] == row["col"] else f"({row['row']}, {row['col']})"
    number = f" {row['index']}" if row["index"] else ""
    words = [short_variant(row["variant"]), f"{row['quantity']}{number}", row["part"], block]
    return plain(" ".join(filter(None, [*words, f"layer {row['layer']}/{row['num_layers']}"])))
