"""The verbs of the command line, each described once: what it is for, what it reads, and the function that does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.errors import UserError

if TYPE_CHECKING:
    from hessfig.config.compose.job import Job


@dataclass(frozen=True)
class Verb:
    """A verb. `does` is 'module:function'; `groups` are listed in its help with a line for each choice.

    It reads the settings and groups that `names` holds, with `table` also those that
    make a table, except those in `ignores`: whatever else is given is refused. A verb
    that is not `composed` from the configuration takes words of its own (those in
    `names`). Verbs without `makes_table` compare the settings of a table with those it
    was made with. `aliases`: (what may be typed, the setting it is). `presets`: words
    that stand before those given. `place`: what it is given in addition to key=value
    words.
    """

    name: str
    about: str
    examples: tuple[str, ...]
    does: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    table: bool = False
    ignores: tuple[str, ...] = ()
    composed: bool = True
    makes_table: bool = False
    aliases: tuple[tuple[str, str], ...] = ()
    presets: tuple[str, ...] = ()
    place: str = ""

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The settings and groups of settings that it reads."""
        if not self.table:
            return self.names
        # Slow to import, and `hessfig --help` needs none of it.
        from hessfig.config.facts import TABLE
        from hessfig.config.settings import top_level

        if self.makes_table:
            return (*top_level(*TABLE), *self.names)
        return (*self.names, *top_level(*TABLE))

    def in_full(self, words: Sequence[str]) -> list[str]:
        """Return the words with every alias replaced by its setting, after the verb's presets."""
        typed = [word.partition("=") for word in words]
        names = dict(self.aliases)
        keys = [names.get(key, key) for key, _, _ in typed]
        presets = [word for word in self.presets if word.partition("=")[0] not in keys]
        return [
            *presets,
            *(
                f"{key}{equals}{value}"
                for key, (_, equals, value) in zip(keys, typed, strict=True)
            ),
        ]

    def takes(self, key: str) -> bool:
        """Whether a setting or group has an effect on this verb."""
        return key not in self.ignores and any(
            key == group or key.startswith(f"{group}.") for group in self.reads
        )

    def check(self, words: Sequence[str]) -> None:
        """Raise UserError for a setting that would have no effect on this verb."""
        from hessfig.config.compose.overrides import command_settings

        for key in command_settings(words):
            if not self.takes(key):
                raise UserError(
                    f"hessfig {self.name} does not read {key}",
                    got=next(
                        word
                        for word in reversed(words)
                        if key in command_settings([word])
                    ),
                    allowed=", ".join(self._taken()),
                    remedy=self._remedy(key),
                )

    def job(self, words: Sequence[str], own: Path | None = None) -> Job:
        """Compose and check key=value words."""
        from hessfig.config.compose.job import checked_job
        from hessfig.config.compose.overrides import check_overrides

        check_overrides(words)
        self.check(words)
        return checked_job(words, own, notes=self.makes_table)

    def _taken(self) -> list[str]:
        """Return what it reads: groups and single settings, or the settings of a group that is not chosen here."""
        from hessfig.config.settings import settings

        inside = (
            key
            for key in settings()
            if key.partition(".")[0] in set(self.reads) & set(self.ignores)
        )
        return [*filter(self.takes, self.reads), *filter(self.takes, inside)]

    def _remedy(self, key: str) -> str:
        if self.name == "plot" and key.partition(".")[0] == "sweep":
            return "figure.sweep=NAME draws another sweep's table"
        if self.name == "plot" and key == "quantity":
            return "figure.options.quantity=NAME draws another quantity"
        others = [
            verb.name for verb in VERBS.values() if verb.composed and verb.takes(key)
        ]
        return "leave it out" + (
            f": it is for hessfig {', '.join(others)}" if others else ""
        )


_NETWORK = ("model", "state", "training", "task")
_MEASURED = (
    "estimator",
    "spectrum",
    "landscape",
    "approximation",
    "directions",
    "compression",
)
_WORKERS = ("device", "memory", "reuse", "workers", "force_workers")
VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            name="run",
            about="measure the cells of a sweep that are not finished; write its table",
            examples=(
                "hessfig run sweep=sigma seeds=5 workers=2",
                "hessfig run sweep=sigma dry_run=true",
                "hessfig run 'sweep.vary={model.n_heads: [1, 2, 4]}' sweep.name=few_heads",
            ),
            does="hessfig.cli.experiment:run_verb",
            groups=("sweep", *_MEASURED, "grid", "launcher", *_NETWORK),
            names=(*_WORKERS, "shard", "launcher", "output_dir", "dry_run"),
            table=True,
            makes_table=True,
        ),
        Verb(
            name="plot",
            about="draw a figure from a sweep's table",
            examples=(
                "hessfig plot figure=3a",
                "hessfig plot figure=3a 'sweep.windows=[[null,0.3]]'",
                "hessfig plot figure=3a figure.width=3.25 'figure.panels=[W_V:H_o,W_Q:H_o]' figure.note=false",
                "hessfig plot figure=6 style=icml 'figure.formats=[pdf]'",
                "hessfig plot figure=3a sweep=mine    (sweep= is short for figure.sweep=)",
            ),
            does="hessfig.cli.results:plot_verb",
            groups=("figure",),
            names=("figure", "style", "output_dir"),
            table=True,
            ignores=(
                *("figure.group", "figure.order", "figure.published"),
                *("sweep", "sweep.name", "sweep.about"),
            ),
            aliases=(("sweep", "figure.sweep"),),
        ),
        Verb(
            name="slice",
            about="measure and draw the loss along directions and in a plane, with its second-order expansion",
            examples=(
                "hessfig slice",
                "hessfig slice state=initialised state.step=null model.d_model=8 'directions.along=[largest,gradient]'",
                "hessfig slice sweep.name=mine directions.reach=0.5 'directions.plane=[largest,random]'",
            ),
            does="hessfig.cli.experiment:slice_verb",
            groups=("directions", "spectrum", *_NETWORK, "grid"),
            names=(*_WORKERS, "output_dir"),
            table=True,
            makes_table=True,
            presets=("sweep=slices", "seeds=1"),
        ),
        Verb(
            name="slopes",
            about="fit growth rates to a sweep's curves, with errors",
            examples=(
                "hessfig slopes sweep=sigma 'sweep.windows=[[null,1.0]]'",
                "hessfig slopes sweep=depth rows=W_Q part=H_o format=latex",
                "hessfig slopes sweep=layernorm levels=true",
                "hessfig slopes sweep=model_size_width quantity=trace",
            ),
            does="hessfig.cli.results:slopes_verb",
            groups=("sweep",),
            names=(
                "tolerance",
                "levels",
                "quantity",
                "rows",
                "part",
                "format",
                "output_dir",
            ),
            table=True,
            ignores=("sweep.about",),
        ),
        Verb(
            name="check",
            about="fail when a slope is outside its tolerance (regression gate)",
            examples=("hessfig check sweep=sigma tolerance=0.1",),
            does="hessfig.cli.results:check_verb",
            groups=("sweep",),
            names=("tolerance", "quantity", "format", "output_dir"),
            table=True,
            ignores=("sweep.about",),
        ),
        Verb(
            name="compare",
            about="compare two tables, or a table and published values, number by number (exits with 1 if any differs)",
            examples=(
                "hessfig compare outputs/sigma theirs/sigma",
                "hessfig compare outputs/sigma published/sigma.csv tolerance=1e-6",
                "hessfig compare outputs/sigma again/sigma/table.csv rows=compared.csv",
            ),
            does="hessfig.cli.compare:compare_verb",
            names=("tolerance", "rows"),
            composed=False,
            place="A B",
        ),
        Verb(
            name="predict",
            about="print with which powers of sigma blocks grow, and which vanish, by counting; nothing is measured",
            examples=(
                "hessfig predict model.attention=sigmoid blocks=all",
                "hessfig predict sweep=components format=csv",
                "hessfig predict model=self_attention task=gaussian powers_of=W_K",
            ),
            does="hessfig.cli.results:predict_verb",
            groups=("sweep", "model", "task"),
            names=("format", "powers_of"),
            table=True,
            makes_table=True,
        ),
        Verb(
            name="report",
            about="write one page on all that is measured: figures, slopes, verdicts, settings (opens from disk)",
            examples=(
                "hessfig report",
                "hessfig report output_dir=theirs tolerance=0.05",
            ),
            does="hessfig.cli.report:report_verb",
            names=("tolerance", "output_dir"),
        ),
        Verb(
            name="verify",
            about="check every statement of the theory against automatic differentiation",
            examples=("hessfig verify statement=thm31,lem41",),
            does="hessfig.cli.results:verify_verb",
            names=(
                "statement",
                "output_dir",
                "seeds",
                "dtype",
                "L",
                "d_V",
                "d_K",
                "d_ff",
            ),
            composed=False,
        ),
        Verb(
            name="status",
            about="report how much of a sweep is measured, and which table exists",
            examples=("hessfig status sweep=sigma",),
            does="hessfig.cli.experiment:status_verb",
            groups=("sweep",),
            names=(*_WORKERS, "format", "output_dir"),
            table=True,
            makes_table=True,
        ),
        Verb(
            name="bundle",
            about="pack a table and all that is needed to measure it again in one archive",
            examples=(
                "hessfig bundle outputs/sigma",
                "hessfig bundle sweep=sigma file=sigma.zip",
            ),
            does="hessfig.cli.bundle:bundle_verb",
            names=("sweep", "output_dir", "file"),
            composed=False,
            place="FOLDER",
        ),
        Verb(
            name="export",
            about="write batch, weights and settings of one network as plain files that need no hessfig",
            examples=(
                "hessfig export outputs/sigma sigma=0.01 seed=1234 into=network",
                "hessfig export sweep=sigma model.d_model=8 'grid.values=[0.3]' seeds=1 into=network.zip",
            ),
            does="hessfig.cli.export:export_verb",
            groups=("sweep", *_NETWORK),
            names=(
                "output_dir",
                "variant",
                "num_layers",
                "sigma",
                "step",
                "seed",
                "into",
                "code",
            ),
            table=True,
            makes_table=True,
            composed=False,
            place="[FOLDER]",
        ),
    )
}
