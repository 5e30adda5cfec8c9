"""The critical batch size of trainings with several batch sizes: steps to a common loss, and their trade-off."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

BATCH, RATE = "training.batch_size", "training.learning_rate"
_LEAST_SIZES = 3
_Runs = dict[tuple[float, str], pd.Series]


@dataclass(frozen=True)
class CriticalBatch:
    """What the trainings of one seed say: S(B) = fewest (1 + critical / B) steps to the loss `target`.

    `sizes` (number of batch sizes,) ascend; `steps` is S of each, infinite where the loss is not reached, at the best
    of its learning rates. `noise_scale` is tr C / |G|^2 where the training of the largest batches reaches the loss, and
    `noise` is that training's whole curve (index: step). NaN where nothing fits.
    """

    target: float
    sizes: np.ndarray
    steps: np.ndarray
    fewest: float
    critical: float
    noise_scale: float
    noise: pd.Series


def critical_batches(losses: pd.DataFrame, noise: pd.DataFrame) -> dict[int, CriticalBatch]:
    """Return the critical batch size of every seed that has three batch sizes or more.

    Both tables have the columns seed, step, value, and the texts BATCH and RATE ("" where a variant has none).
    """
    seeds = sorted(set(losses["seed"]) & set(noise["seed"]))
    of_seed = {seed: [_runs(rows[rows["seed"] == seed]) for rows in (losses, noise)] for seed in seeds}
    found = {seed: _critical(*runs) for seed, runs in of_seed.items()}
    return {int(seed): one for seed, one in found.items() if one is not None}


def _runs(rows: pd.DataFrame) -> _Runs:
    """Return curves along the steps by batch size and learning rate."""
    known = rows[(rows[BATCH] != "") & (rows["value"] > 0)]
    return {
        (float(size), str(rate)): one.set_index("step")["value"].sort_index()
        for (size, rate), one in known.groupby([BATCH, RATE])
    }


def _critical(losses: _Runs, noise: _Runs) -> CriticalBatch | None:
    sizes = sorted({size for size, _ in losses})
    if len(sizes) < _LEAST_SIZES:
        return None
    target = max(min(curve.min() for (one, _), curve in losses.items() if one == size) for size in sizes)
    best = [min((_first_at(curve, target), key) for key, curve in losses.items() if key[0] == size) for size in sizes]
    steps = np.array([count for count, _ in best])
    sides = np.stack([1 / steps, 1 / (steps * np.array(sizes))], axis=1)
    fewest, examples = np.linalg.lstsq(sides, np.ones(len(sizes)), rcond=None)[0]
    curve = noise.get(best[-1][1], pd.Series(dtype=float))
    fits = fewest > 0 and examples > 0
    scale = _between(curve, steps[-1]) if fits and len(curve) else np.nan
    critical = examples / fewest if fits else np.nan
    return CriticalBatch(target, np.array(sizes), steps, float(fewest), float(critical), float(scale), curve)


def _between(curve: pd.Series, step: float) -> float:
    """Return a curve at a step, linear in its logarithm between measured ones."""
    return float(10 ** np.interp(step, curve.index.to_numpy(float), np.log10(curve.to_numpy())))


def _first_at(curve: pd.Series, target: float) -> float:
    """Return the step at which a loss first falls to the target, linear in its logarithm; infinity if it does not."""
    logs, steps = np.log(curve.to_numpy()), curve.index.to_numpy(float)
    below = np.flatnonzero(logs <= np.log(target))
    if not below.size:
        return np.inf
    k = below[0]
    return float(steps[k] if k == 0 else np.interp(-np.log(target), -logs[k - 1 : k + 1], steps[k - 1 : k + 1]))
