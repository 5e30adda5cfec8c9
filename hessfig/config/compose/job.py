"""A job: the settings of one run of a command, composed by Hydra from its words and checked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from threading import RLock, get_ident
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.basecontainer import BaseContainer

from hessfig.config.checks import NETWORK_CHECKS, check_config
from hessfig.config.compose.overrides import command_settings, for_hydra, hydra_quoted
from hessfig.config.compose.refusals import REFUSED, composition_error
from hessfig.config.compose.vary import (
    changed,
    check_shapes,
    combinations,
    values_to_vary,
    variant_name,
)
from hessfig.config.facts import IN_MANIFEST
from hessfig.config.given import GivenSetting, setting_of, unread_given
from hessfig.config.presets import figures, names, settings_in
from hessfig.config.schema import GROUPS, Config
from hessfig.config.settings import default_of, settings, top_level, value_of
from hessfig.errors import UserError

# settings that name a file or a folder
PATHS = ("task.path", "model.path", "state.path")
Variants = list[tuple[str, Config]]


@dataclass(frozen=True)
class Job:
    """The settings of one run, the words that were given for it, and the user's folder if there is one.

    `unread` are given settings that network, data and state do not read, with a note
    each: they are not composed.
    """

    composed: DictConfig
    words: tuple[str, ...]
    own: Path | None
    unread: tuple[GivenSetting, ...] = ()

    @cached_property
    def given(self) -> dict[str, Any]:
        """The settings given on the command line, by key."""
        return command_settings(self.words)

    @cached_property
    def config(self) -> Config:
        """The checked settings. Raises UserError for values that cannot be run."""
        return self._check(self.made(self.composed))

    @cached_property
    def variants(self) -> Variants:
        """(name, settings) for every combination of what the sweep varies; '' names the only one.

        Settings given on the command line are not varied; the number of layers is not
        part of the name.
        """
        return [(name, self._check(config)) for name, config in self._unchecked]

    @cached_property
    def first(self) -> Config:
        """The settings of the first variant, without the time of the others."""
        return self._check(next(self._each())[1])

    @cached_property
    def asked(self) -> list[GivenSetting]:
        """The settings given by the user: words, settings of their own sweep file, and varied settings, by variant."""
        noted = {setting.word: setting for setting in self.unread}
        asked = []
        for key, value in self._of_user.items():
            setting = _given(key, value, self.own)
            asked.append(noted.get(setting.word, setting))
        varied = dict[str, tuple[int, ...]]()
        for place, choice in enumerate(
            combinations(self.composed.sweep.vary, self.composed.sweep.variants)
        ):
            for key in choice:
                varied[key] = (*varied.get(key, ()), place)
        return [
            *asked,
            *(GivenSetting(key, (key,), places) for key, places in varied.items()),
        ]

    def without_unread(self) -> Job:
        """Return the job without the given settings that no network, data or state of it reads, which are noted.

        Its cells are those of the same words without them. Raises UserError as
        `unread_given` does, and for a value that the setting could not have.
        """
        configs = [config for _, config in self._unchecked]
        unread = import_module(NETWORK_CHECKS).unread
        found = list(
            unread_given(
                self.asked, len(configs), lambda place, key: unread(configs[place], key)
            )
        )
        if not found:
            return self
        for key in (setting_of(key) for setting, _ in found for key in setting.keys):
            settings()[key].check(value_of(configs[0], key))
        idle = {setting.word.partition("=")[0] for setting, _ in found}
        kept = compose(
            [word for word in self.words if not idle & {*command_settings([word])}],
            self.own,
        ).composed
        for key in idle - {*self.given}:  # of the user's own sweep
            OmegaConf.update(kept, key, default_of(key))
        return Job(
            kept,
            self.words,
            self.own,
            tuple(replace(setting, note=note) for setting, note in found),
        )

    @property
    def implied(self) -> dict[str, list[str]]:
        """{setting: words} that settings of the user imply, where nothing that is given contradicts one of them."""
        implied = {}
        for key, value in self._of_user.items():
            if key in settings() and value:
                words = [
                    word
                    for word in settings()[key].says.implies.split()
                    if not self._is_made(word)
                ]
                if words and not any(map(self._is_given, words)):
                    implied[key] = words
        return implied

    @property
    def flags(self) -> list[str]:
        """The flag that names the user's folder."""
        return ["--config-dir", str(self.own)] if self.own else []

    @property
    def windows(self) -> list[tuple[float | None, float | None]]:
        """The windows that slopes are fitted on."""
        return [(low, high) for low, high in self.config.sweep.windows]

    def of_sweep(self, sweep: str) -> Job:
        """Return the job of the same words for another sweep."""
        kept = [
            word for word in self.words if not word.startswith(("sweep=", "figure="))
        ]
        return compose([*kept, f"sweep={sweep}"], self.own)

    def in_folder(self, output_dir: str) -> Job:
        """Return the same job with its results elsewhere."""
        changed = self.composed.copy()
        changed.output_dir = output_dir
        return replace(self, composed=changed)

    def fitted_as(self, sweep: Mapping[str, Any]) -> Job:
        """Return the same job with the windows, predictions and average of `sweep`, where none are given."""
        changed = self.composed.copy()
        for key in ("windows", "predictions", "average"):
            if key in sweep and f"sweep.{key}" not in self.given:
                changed.sweep[key] = sweep[key]
        return replace(self, composed=changed)

    def yaml(self) -> str:
        """Return the settings as YAML."""
        return OmegaConf.to_yaml(self.composed)

    def _is_made(self, word: str) -> bool:
        """Whether the choice of a group is that which was composed."""
        group, _, choice = word.partition("=")
        return choice in (
            self.composed[group].get("kind"),
            self.composed[group].get("data"),
        )

    def _is_given(self, word: str) -> bool:
        group = word.partition("=")[0]
        return not {group, f"{group}.kind", f"{group}.data"}.isdisjoint(self._of_user)

    @cached_property
    def _of_user(self) -> dict[str, Any]:
        return {**self._of_own_sweep, **self.given}

    @cached_property
    def _of_own_sweep(self) -> dict[str, Any]:
        """The settings of the user's own sweep file, except those of the sweep itself."""
        name = self.given.get("sweep")
        if self.own is None or name is None or name in names("sweep"):
            return {}
        values = settings_in("sweep", str(name), self.own)
        return {
            key: value for key, value in values.items() if not key.startswith("sweep")
        }

    @cached_property
    def _unchecked(self) -> Variants:
        return list(self._each())

    def _each(self) -> Iterator[tuple[str, Config]]:
        sweep = self.composed.sweep
        copies = dict[frozenset[str], DictConfig]()
        for choice in combinations(sweep.vary, sweep.variants):
            keys = frozenset(choice)
            # To copy takes longest: once where all keys are equal, which replace each
            # other.
            if keys not in copies:
                copies[keys] = self.composed.copy()
            yield variant_name(choice), self._with(choice, copies[keys])

    def _with(self, choice: dict[str, Any], changed: DictConfig) -> Config:
        for key, value in choice.items():
            try:
                OmegaConf.update(
                    changed, key, value, force_add=key.startswith("model.options.")
                )
            except REFUSED as error:
                raise composition_error(error, [f"{key}={value}"], None) from error
        return self.made(changed)

    def made(self, composed: DictConfig | None = None) -> Config:
        """Return the settings without the checks of their values."""
        try:
            with _no_resolvers():
                config = OmegaConf.to_object(composed or self.composed)
        except REFUSED as error:
            raise composition_error(error, self.words, self.own) from error
        assert isinstance(config, Config)
        return config

    def _check(self, config: Config) -> Config:
        check_shapes(config)
        check_config(config)
        return config


def _given(key: str, value: Any, own: Path | None) -> GivenSetting:
    if key not in GROUPS:
        return GivenSetting(key, (key,))
    inside = tuple(
        name for name in settings_in(key, str(value), own) if name not in GROUPS
    )
    return GivenSetting(f"{key}={value}", inside)


def checked_job(
    words: Sequence[str], own: Path | None = None, *, notes: bool = False
) -> Job:
    """Return the job of checked `words`; with `notes`, without settings that nothing reads (Job.without_unread).

    Raises UserError for the first setting that cannot be run.
    """
    job = _with_implied(compose(words, own))
    if notes:
        job = job.without_unread()
    assert job.variants
    return job


def _with_implied(job: Job) -> Job:
    """Return the job with the settings that its settings imply, which are printed on stderr."""
    for key, words in job.implied.items():
        print(f"note: {key} implies {' '.join(words)}", file=sys.stderr, flush=True)
    words = [*chain(*job.implied.values())]
    if not words:
        return job
    return compose([*job.words, *words], job.own)


def compose(words: Sequence[str], own: Path | None = None) -> Job:
    """Compose the shipped configuration, the user's folder `own` and `words`."""
    try:
        composed = _hydra(words, own)
    except REFUSED as error:
        raise composition_error(error, words, own) from error
    Job(composed, tuple(words), own).made()
    given = command_settings(words)
    vary: Any = OmegaConf.to_container(composed.sweep.vary)
    composed.sweep.vary = values_to_vary(vary, given)
    composed.sweep.variants = changed(
        OmegaConf.to_container(composed.sweep.variants), given
    )
    _drop_where_of_preset(composed, given)
    composed.config_dir = str(own) if own else None
    job = Job(composed, tuple(words), own)
    _check_own_names(job)
    return job


def _drop_where_of_preset(composed: DictConfig, given: Mapping[str, Any]) -> None:
    """Let a `figure.where={...}` that is given replace the figure's own; Hydra joins the two, so {} would keep all."""
    if "figure.where" not in given:
        return
    kept = set(given["figure.where"])
    for key in given:
        if key.startswith("figure.where."):
            kept.add(key.removeprefix("figure.where."))
    composed.figure.where = {
        name: value for name, value in composed.figure.where.items() if name in kept
    }


def settled_again(
    recorded: Mapping[str, Any], words: Sequence[str] = (), own: Path | None = None
) -> Job:
    """Return the job of the settings `made` that a manifest has; `words` (of no group) change some of them.

    Settings that it lacks are those of versions before they were added: they stand at
    their defaults. A relative path among them (of data, weights, a model) is that of a
    file in the folder `own`, where it is there. Raises UserError for settings that this
    version does not know.
    """
    try:
        composed = OmegaConf.merge(
            _defaults(), _found_in(recorded, own), OmegaConf.from_dotlist(list(words))
        )
    except REFUSED as error:
        raise composition_error(error, words, own) from error
    assert isinstance(composed, DictConfig)
    composed.config_dir = str(own) if own else None
    job = Job(composed, tuple(words), own)
    job.made()
    return job


@cache
def _defaults() -> DictConfig:
    """Return the schema's settings; `merge` copies them, which is four times as fast as making them."""
    return OmegaConf.structured(Config)


def _found_in(recorded: Mapping[str, Any], own: Path | None) -> dict[str, Any]:
    """Return the settings of a table, with paths that lead into `own`; a pin of a path that is varied is left out."""
    kept = top_level(*IN_MANIFEST)
    changed = deepcopy({key: value for key, value in recorded.items() if key in kept})
    vary = changed.setdefault("sweep", {}).get("vary") or {}
    for key in PATHS:
        group, name = key.split(".")
        section = changed.get(group) or {}
        if name in section:
            section[name] = _inside(section[name], own)
        if key in vary:
            vary[key] = [_inside(value, own) for value in vary[key]]
            section.pop("sha256", None)
    if "model.factory" in vary:
        changed["model"].pop("sha256", None)
    return changed


def _inside(path: Any, own: Path | None) -> Any:
    if own is not None and isinstance(path, str) and (own / path).exists():
        return str(own / path)
    return path


def _register_figures(words: Sequence[str], own: Path | None) -> None:
    """Let Hydra know the figure that is asked for, or all: a file of the user's may name any."""
    for name in figures():
        if own or name in ("none", command_settings(words).get("figure")):
            _register_figure(name)


@cache
def _register_figure(name: str) -> None:
    settings = {
        key: value
        for key, value in figures()[name].items()
        if key not in ("about", "seen")
    }
    ConfigStore.instance().store(name, settings, group="figure")


def _hydra(words: Sequence[str], own: Path | None) -> DictConfig:
    """Compose words and files; the output folder is set last, since it does not change the composition."""
    place = [word for word in words if word.startswith("output_dir=")]
    others = [word for word in words if word not in place]
    composed = _composed(tuple(others), own) if own else _shipped(tuple(others)).copy()
    for folder in command_settings(place).values():
        composed.output_dir = folder
    return composed


@lru_cache(maxsize=256)
def _shipped(words: tuple[str, ...]) -> DictConfig:
    """Compose words and the shipped files, which do not change while hessfig runs.

    In Hydra's order: groups that are chosen, then settings, each on top of these. The
    first takes nine tenths of the time, and is the same for other settings.
    """
    with _own_hydra():
        loader = ConfigLoaderImpl(_search_path())
        _register_figures(words, None)
        overrides = _parsed(words)
        loader.validate_sweep_overrides_legal(overrides, RunMode.RUN, from_shell=False)
        choices: list[str] = []
        values: list[Override] = []
        for word, override in zip(words, overrides, strict=True):
            if _is_choice(override, loader.repository):
                choices.append(word)
            else:
                values.append(override)
        composed = _chosen(tuple(choices)).copy()
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
    return composed


@lru_cache(maxsize=256)
def _chosen(words: tuple[str, ...]) -> DictConfig:
    """Compose the shipped files that words choose."""
    return _composed(words, None)


def _parsed(words: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides([*map(for_hydra, words)])


def _is_choice(override: Override, repository: ConfigRepository) -> bool:
    """Whether Hydra reads it as the choice of a group, or as a setting of its own."""
    if override.is_hydra_override():
        return True
    is_group = repository.group_exists(override.key_or_group)
    return is_group and not isinstance(override.value(), dict)


def _composed(words: tuple[str, ...], own: Path | None) -> DictConfig:
    searched = [f"hydra.searchpath=[{hydra_quoted(f'file://{own}')}]"] if own else []
    overrides = [*searched, *map(for_hydra, words)]
    with _own_hydra():
        _register_figures(words, own)
        loader = ConfigLoaderImpl(_search_path())
        composed: DictConfig = loader.load_configuration(
            "config", overrides, RunMode.RUN, from_shell=False
        )
    with open_dict(composed):
        del composed["hydra"]
    return composed


def _search_path() -> ConfigSearchPathImpl:
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    path.append("main", "pkg://hessfig.conf")
    path.append("schema", "structured://")
    return path


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Give Hydra global objects of hessfig's own: an application that uses Hydra keeps its GlobalHydra, its ConfigStore
    and the version whose behaviour it chose.
    """
    with (
        _ONE_AT_A_TIME,
        _in_this_thread(Singleton, "_instances", _singletons()),
        _no_resolvers(),
    ):
        version.setbase("1.3")
        yield


def _no_resolvers() -> AbstractContextManager[None]:
    """Let ${KEY} name another setting, and nothing else: neither the environment, nor the clock, nor a function."""
    return _in_this_thread(BaseContainer, "_resolvers", {})


@contextmanager
def _in_this_thread(owner: type, name: str, own: dict[Any, Any]) -> Iterator[None]:
    """Replace a global dictionary by `own` for this thread; the others go on to read and to change the global one."""
    with _ONE_AT_A_TIME:
        of_application = getattr(owner, name)
        view = _ByThread(own, of_application)
        setattr(owner, name, view)
        try:
            yield
        finally:
            # Another thread may have set a new one (OmegaConf.clear_resolvers).
            if getattr(owner, name) is view:
                setattr(owner, name, of_application)


class _ByThread(MutableMapping[Any, Any]):
    """A dictionary that is `own` in the thread that creates it, and `others` in every other thread."""

    def __init__(self, own: dict[Any, Any], others: MutableMapping[Any, Any]) -> None:
        self._thread = get_ident()
        self._own = own
        self._others = others

    @property
    def _seen(self) -> MutableMapping[Any, Any]:
        return self._own if get_ident() == self._thread else self._others

    def __getitem__(self, key: Any) -> Any:
        return self._seen[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._seen[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._seen[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deepcopy(self._seen, memo)


@cache
def _singletons() -> dict[type, Any]:
    """Return {class: object}: plugins as the application has them, and a store with Hydra's settings and hessfig's."""
    shared: dict[type, Any] = {
        Plugins: Plugins.instance(),
        SourcesRegistry: SourcesRegistry.instance(),
    }
    store = copy(ConfigStore.instance())
    store.repo = {"hydra": store.repo["hydra"]}
    store.store("schema", Config)
    return {**shared, ConfigStore: store}


_ONE_AT_A_TIME = RLock()  # Hydra has one set of global objects per process


def _check_own_names(job: Job) -> None:
    """A user's file must name its sweep or figure: what it leaves out would be the default's, and so its folder."""
    for group in ("sweep", "figure") if job.own else ():
        chosen = job.given.get(group)
        name = job.composed[group].name
        if (
            chosen in names(group)
            or chosen is None
            or f"{group}.name" in job.given
            or name == chosen
        ):
            continue
        raise UserError(
            f"{job.own}/{group}/{chosen}.yaml does not name itself",
            got=f"{group}.name: {name}",
            allowed=f"{group}.name: {chosen}",
            remedy=f"write name: {chosen}" + " under sweep:" * (group == "sweep"),
        )
