"""A variant of a sweep: its settings, and the weights, blocks and cell keys that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from hessfig.config.enums import DType, Reuse, State
from hessfig.config.grid import sigma_values
from hessfig.config.keys import in_key
from hessfig.config.schema import Config, with_defaults
from hessfig.errors import UserError
from hessfig.files import write_text
from hessfig.measurements.allocation import PILOT_SHARE, needs_pilots, pilot_share
from hessfig.measurements.catalogue import (
    check_decay,
    quantity,
    source_of_quantity,
    walks,
)
from hessfig.measurements.exact_choice import BY_COST
from hessfig.measurements.quantity import Quantity, check_served
from hessfig.measurements.requirements import (
    check_differences,
    check_parts,
    check_published_probes,
)
from hessfig.measurements.settings_and_costs import keys_read
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import ONCE, kind
from hessfig.record import FROBENIUS, UNREADABLE, digest, read_checked, sealed_text
from hessfig.states import point
from hessfig.states.training import trajectory
from hessfig.terms import Block
from hessfig.weights import Layout

MET = "networks.json"
ALGORITHM_VERSION = 4
FLOAT32_VERSION = (
    2  # since 2, which 1 did not name, networks of the package are evaluated in float64
)


@dataclass(frozen=True, eq=False)
class Variant:
    """One variant of a sweep: its name, its settings, and what follows from them, found once for all its cells.

    `witness` is the record of how far the first network of the user's own that was
    planned is from the user's function.
    """

    name: str
    config: Config
    _sciences: dict[str, dict[str, Any]] = field(
        default_factory=dict, init=False, repr=False
    )
    _contents: dict[str, str] = field(default_factory=dict, repr=False)
    witness: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def layout(self) -> Layout:
        """The weights of the configured network."""
        return kind(self.config.model.kind).layout(self.config)

    @cached_property
    def blocks(self) -> list[Block]:
        """The requested blocks."""
        return blocks_of(self.config.blocks, self.layout, self.config.model)

    @cached_property
    def widest(self) -> int:
        """The most entries of a column of blocks."""
        return max(self.layout.size(block.layer, block.col) for block in self.blocks)

    @cached_property
    def axes(self) -> frozenset[str]:
        """Which of sigma and seed change the network."""
        return point.axes(self.config)

    @cached_property
    def training(self) -> dict[str, Any]:
        """What identifies its trainings besides sigma and seed, as plain values."""
        return trajectory.science(self.config)

    def science(self, name: str) -> dict[str, Any]:
        """Return everything that changes the numbers of a quantity, without sigma and seed, as plain values."""
        if name not in self._sciences:
            chosen = self.quantity(name)
            self._sciences[name] = {
                **self._network,
                "quantity": chosen.name,
                "version": [
                    chosen.version_of(self.config),
                    source_of_quantity(name, self.config.config_dir),
                ],
                "settings": chosen.settings(self.config, self.layout),
            }
        return self._sciences[name]

    def short_hash(self, name: str) -> str:
        """Return the value of the column `config` of a table for a quantity."""
        return digest(self.science(name))[:12]

    def content(self, sigma: float | None, seed: int, *, is_far: bool = False) -> str:
        """Return a hash of what the user's code returns and of what the network computes; empty for other networks.

        What it computes at the weights, or `is_far` away from them too. Where nothing
        of it can be reused it begins with ONCE.
        """
        if not kind(self.config.model.kind).is_own:
            return ""
        seed = seed if "seed" in self.axes else self.config.first_seed
        label = self._label(sigma, seed, is_far=is_far)
        if label not in self._contents:
            self._contents.update(self._planned(sigma, seed))
        return self._contents[label]

    def _planned(self, sigma: float | None, seed: int) -> dict[str, str]:
        """Return the contents of one network by label, from one call of the user's code or from earlier runs."""
        labels = {
            self._label(sigma, seed, is_far=is_far): is_far
            for is_far in self._distances
        }
        known = {
            label: self._known.get(digest([self._network, label]), "")
            for label in labels
        }
        if all(known.values()):
            return known
        from hessfig.sweep.own_content import planned_contents  # takes torch

        # Whether calls agree is a matter of the code, not of the seed.
        is_first = not self._contents
        distances = [*labels.values()]
        contents, witness = planned_contents(
            self.config, sigma, seed, twice=is_first, distances=distances
        )
        if not self.witness:
            self.witness.update(witness)
        return dict(zip(labels, contents, strict=True))

    @cached_property
    def _distances(self) -> list[bool]:
        """Where its networks are evaluated: at their weights, and away from them if a quantity needs this."""
        if any(walks(name, self.config) for name in self.config.quantities):
            return [False, True]
        return [False]

    def networks(self) -> dict[str, str]:
        """Return the contents of the variant's networks, where they are the user's own, by sigma and seed."""
        if "seed" in self.axes:
            seeds = self.seeds()
        else:
            seeds = range(self.config.first_seed, self.config.first_seed + 1)
        places = product(self.sigmas(), seeds, self._distances)
        contents = {}
        for sigma, seed, is_far in places:
            label = self._label(sigma, seed, is_far=is_far)
            contents[label] = self.content(sigma, seed, is_far=is_far)
        return {label: content for label, content in contents.items() if content}

    def reusable_contents(self) -> dict[str, str]:
        """Return the contents of its networks by settings, sigma and seed, for runs with reuse=sources."""
        networks = self.networks().items()
        reusable = {}
        for label, content in networks:
            if not content.startswith(ONCE):
                reusable[digest([self._network, label])] = content
        return reusable

    def quantity(self, name: str) -> Quantity:
        """Return the quantity called `name`, of the package or of the user's own files."""
        return quantity(name, self.config.config_dir)

    def sigmas(self) -> list[float | None]:
        """Return the swept scales; [None] if the network does not depend on sigma."""
        return [*sigma_values(self.config.grid)] if "sigma" in self.axes else [None]

    def steps(self) -> list[int | None]:
        """Return the steps of a trained state; [None] for other states."""
        return point.steps(self.config)

    def seeds(self) -> range:
        """Return the repeats."""
        return range(self.config.first_seed, self.config.first_seed + self.config.seeds)

    @property
    def num_sigmas(self) -> int:
        """How many scales are swept: counted, for a grid may be too long to be listed."""
        grid = self.config.grid
        return len(grid.values or range(grid.points)) if "sigma" in self.axes else 1

    @property
    def num_cells(self) -> int:
        """How many cells the variant has."""
        return (
            self.config.seeds
            * self.num_sigmas
            * len(self.steps())
            * len(self.config.quantities)
        )

    @property
    def has_pilots(self) -> bool:
        """Whether pilots settle its probes: where they can, and cost at most PILOT_SHARE of its cells."""
        return self.may_have_pilots and not self.left_out

    @cached_property
    def may_have_pilots(self) -> bool:
        """Whether pilots could settle its probes: if they spread over seeds, and none is a training."""
        spreads = {
            "sigma",
            "seed",
        } <= self.axes and self.config.state.kind != State.trained
        return (
            FROBENIUS in self.config.quantities
            and spreads
            and needs_pilots(self.config, self.layout)
        )

    @cached_property
    def left_out(self) -> str:
        """Why there are no pilots although they could settle its probes; empty if there are."""
        if not self.may_have_pilots or self.config.estimator.rules < BY_COST:
            return ""
        share = pilot_share(self.config, self.layout)
        if share <= PILOT_SHARE:
            return ""
        probes = self.config.estimator.num_probes
        return f"pilots would cost {share:.0%} of the cells, more than {PILOT_SHARE:.0%}: {probes} probes without them"

    @cached_property
    def keys_read(self) -> frozenset[str]:
        """The settings, by dotted key, that its quantities read besides network, data and state."""
        settled = ["estimator.variance_share"] * self.may_have_pilots
        settled += ["estimator.method"] * bool(self.config.task.weight_decay)
        settled += ["estimator.rules"] * (FROBENIUS in self.config.quantities)
        names = self.config.quantities
        return frozenset(settled).union(
            *(keys_read(self.science(name)["settings"]) for name in names)
        )

    def check(self) -> None:
        """Raise UserError for settings under which its quantities cannot be measured."""
        kind(self.config.model.kind).check(self.config)
        point.check(self.config)
        self._check_quantities()
        check_parts(self.config, self.blocks)
        check_decay(self.config)
        check_differences(self.config)
        check_published_probes(self.config, self.blocks)
        check_served(
            [self.quantity(name) for name in self.config.quantities], self.blocks
        )
        for name in self.config.quantities:
            self.quantity(name).check_settings(self.config, self.layout)
            self.science(name)

    def _check_quantities(self) -> None:
        names = self.config.quantities
        what = ""
        if not names:
            what = "quantities is empty"
        elif len({self.quantity(name).name for name in names}) < len(names):
            what = "quantities: each is named once"
        if what:
            raise UserError(
                what,
                got=names,
                allowed="a list of names",
                remedy="for example quantities=[frobenius,trace]",
            )

    @staticmethod
    def _label(sigma: float | None, seed: int, *, is_far: bool) -> str:
        label = f"seed={seed}" if sigma is None else f"sigma={sigma!r}, seed={seed}"
        return f"{label}, away from the weights" if is_far else label

    @cached_property
    def _known(self) -> dict[str, str]:
        """What was returned in earlier runs, if that is to be trusted."""
        folder = Path(self.config.output_dir) / self.config.sweep.name
        return _read_contents(folder) if self.config.reuse == Reuse.sources else {}

    @cached_property
    def _network(self) -> dict[str, Any]:
        plain = in_key(replace(self.config, model=with_defaults(self.config.model)))
        if self.config.dtype == DType.float32:
            narrow = {"float32": FLOAT32_VERSION}
        else:
            narrow = {}
        return {
            "algorithm": ALGORITHM_VERSION,
            "task": plain["task"],
            "model": plain["model"],
            "source": kind(self.config.model.kind).source(self.config),
            "state": point.science(self.config),
            "dtype": plain["dtype"],
            "device": self.config.device.partition(":")[0],
            **narrow,
        }


def note_contents(folder: Path, variants: Sequence[Variant]) -> None:
    """Keep, next to the table, what the user's code returned in this run and those before."""
    met: dict[str, str] = {}
    for variant in variants:
        met |= variant.reusable_contents()
    if met:
        write_text(
            folder / MET, sealed_text({"networks": {**_read_contents(folder), **met}})
        )


def _read_contents(folder: Path) -> dict[str, str]:
    """Return what `note_contents` left in the folder of a sweep."""
    try:
        contents = read_checked(folder / MET)["networks"]
        return {str(label): str(content) for label, content in contents.items()}
    except UNREADABLE:
        return {}
