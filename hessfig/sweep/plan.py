"""Plans a sweep: from settings to variants, pilots and cells, in a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any

from hessfig.config.given import GivenSetting, unread_given
from hessfig.config.grid import sigma_values
from hessfig.config.schema import Config
from hessfig.measurements.allocation import (
    PILOT_REPEATS,
    Allocation,
    allocation,
    few,
    pilot_config,
)
from hessfig.measurements.catalogue import measured_once, walks
from hessfig.record import FROBENIUS, digest
from hessfig.states import point
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.limits import check_variants, unread_setting
from hessfig.sweep.store import CellStore, Failures, Rows
from hessfig.sweep.variant import Variant


@dataclass(frozen=True, eq=False)
class Cell:
    """One quantity of one network at one state. Its key names its stored result.

    `probe_counts`: what pilots settled for it, by name (probes of a column, for norms
    by estimator=auto).
    """

    variant: Variant
    sigma: float | None
    seed: int
    quantity: str = FROBENIUS
    probe_counts: Mapping[str, int] = field(default_factory=dict)
    step: int | None = None

    @property
    def config(self) -> Config:
        return self.variant.config

    @cached_property
    def science(self) -> dict[str, Any]:
        """Everything that changes the numbers of this cell."""
        science = self.variant.science(self.quantity)
        science = {**science, "sigma": self.sigma, "seed": self.seed}
        if self.step is not None:
            science["step"] = self.step
        if self.probe_counts:
            science["settled"] = dict(self.probe_counts)
        is_far = walks(self.quantity, self.config)
        content = self.variant.content(self.sigma, self.seed, is_far=is_far)
        if content:
            science["content"] = content
        return science

    @cached_property
    def key(self) -> str:
        return digest(self.science)

    @cached_property
    def trajectory(self) -> Trajectory | None:
        """The training behind the cell; None where the network is not trained."""
        if self.step is None:
            return None
        return Trajectory(self.config, self.sigma, self.seed, self.variant.training)

    @property
    def labels(self) -> dict[str, Any]:
        """The labels that identify this cell within its sweep."""
        return {
            "variant": self.variant.name,
            "num_layers": self.num_layers,
            "sigma": self.sigma,
            "step": self.step,
            "seed": self.seed,
            "quantity": self.quantity,
        }

    @property
    def num_layers(self) -> int:
        """Layers of the network: as configured for the package's own, as named by its user for another."""
        return self.variant.layout.num_layers

    def __str__(self) -> str:
        words = [self.variant.name, f"n_layers={self.num_layers}"]
        if self.sigma is not None:
            words.append(f"sigma={self.sigma:g}")
        if self.step is not None:
            words.append(f"step={self.step}")
        words.append(f"seed={self.seed}")
        if self.quantity != FROBENIUS:
            words.append(self.quantity)
        return ", ".join(filter(None, words))


class Sweep:
    """One sweep: its `variants`, its `folder` with the `store` of finished cells and the causes of `failures`.

    `pilots` say how many probes its `cells` take: these are planned once, from the
    pilots that are finished then; `reread` plans them again. `unread` names the `given`
    settings that nothing reads, and quantities whose rows another one gives. Raises
    UserError for the first request that cannot be measured.
    """

    def __init__(
        self, asked: Sequence[tuple[str, Config]], given: Sequence[GivenSetting] = ()
    ) -> None:
        self.variants = [
            Variant(name, point.pinned(measured_once(config))) for name, config in asked
        ]
        check_variants(self.variants)
        self.unread = [setting.note for setting in given if setting.note]
        others = [setting for setting in given if not setting.note]
        unread = unread_given(
            others,
            len(self.variants),
            lambda at, key: unread_setting(self.variants[at], key),
        )
        self.unread += [note for _, note in unread]
        self.unread += _left_out(asked[0][1], self.variants[0].config)
        self.unread += _not_measured(self.variants)
        self.config = self.variants[0].config
        self.name = self.config.sweep.name
        self.folder = Path(self.config.output_dir) / self.name
        self.store = CellStore(self.folder / "cells")
        self.failures = Failures(self.folder / "failures")

    @property
    def pilots(self) -> list[Cell]:
        """Pilot cells, which compare the probes' error with the spread over seeds, for variants with probes.

        A few values of the grid, at each PILOT_REPEATS networks of their own. Their
        seeds are negative, which no sweep's are. A network that does not change with
        sigma and seed has no such spread, and no pilots; nor has a trained state, for
        which every pilot would be a training.
        """
        return list(chain(*self._pilots))

    @cached_property
    def allocations(self) -> list[Allocation]:
        """The numbers of probes that follow from the finished pilots of each variant; empty without pilots."""
        return [
            allocation(self._rows_by_sigma(pilots), variant.config)
            for variant, pilots in zip(self.variants, self._pilots, strict=True)
        ]

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells, repeat by repeat, so that an early stop leaves whole curves."""
        planned = list(zip(self.variants, self.allocations, strict=True))
        cells = []
        for seed in self.variants[0].seeds():
            for variant, chosen in planned:
                for sigma, step in product(variant.sigmas(), variant.steps()):
                    for name in variant.config.quantities:
                        probes = chosen.at(sigma) if name == FROBENIUS else {}
                        cells.append(Cell(variant, sigma, seed, name, probes, step))
        return cells

    @property
    def notes(self) -> list[str]:
        """What nothing reads, and why variants have no pilots although they could, with how many variants these are."""
        reasons = Counter(
            variant.left_out for variant in self.variants if variant.left_out
        )
        number = len(self.variants)
        return [
            *self.unread,
            *(
                why + f" ({count} of {number} variants)" * (number > 1)
                for why, count in reasons.items()
            ),
        ]

    def reread(self) -> Sweep:
        """Return the same sweep with its cells planned again, from the pilots finished by now."""
        fresh = copy(self)
        for name in ("allocations", "cells"):
            fresh.__dict__.pop(name, None)
        return fresh

    def unfinished(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells without a valid result; corrupt files are named on stderr and count as missing."""
        return [
            cell for cell in cells if self.store.sound(cell.key, warns=True) is None
        ]

    @cached_property
    def _pilots(self) -> list[list[Cell]]:
        return [
            _pilots(variant) if variant.has_pilots else [] for variant in self.variants
        ]

    def _rows_by_sigma(self, pilots: list[Cell]) -> dict[float, Rows]:
        rows_by_sigma: dict[float, Rows] = {}
        for cell in pilots:
            assert cell.sigma is not None
            rows, _ = self.store.sound(cell.key) or ([], None)
            rows_by_sigma.setdefault(cell.sigma, []).extend(rows)
        return rows_by_sigma


def _left_out(asked: Config, planned: Config) -> list[str]:
    """Return a note for each quantity that is not measured, since another one gives its rows."""
    names = [name for name in asked.quantities if name not in planned.quantities]
    return [
        f"{name} is among the rows of {', '.join(planned.quantities)}, and is measured once"
        for name in names
    ]


def _not_measured(variants: Sequence[Variant]) -> list[str]:
    """Return a note for each exponent of sweep.predictions whose block and part no variant measures."""
    measured = set()
    for variant in variants:
        for block in variant.blocks:
            name = block.row if block.row == block.col else f"{block.row},{block.col}"
            for part in variant.config.parts:
                measured.add((name, str(part)))
    notes = []
    for name, parts in variants[0].config.sweep.predictions.items():
        for part in parts:
            if (name, part) not in measured:
                notes.append(
                    f"sweep.predictions: {name}: {part} is not measured by this sweep, "
                    "and `hessfig slopes` refuses an exponent without its block"
                )
    return notes


def _pilots(variant: Variant) -> list[Cell]:
    pilot = replace(variant, config=pilot_config(variant.config))
    cells: list[Cell] = []
    for sigma in few(sigma_values(variant.config.grid)):
        for _ in range(PILOT_REPEATS):
            cells.append(Cell(pilot, sigma, -1 - len(cells)))
    return cells
