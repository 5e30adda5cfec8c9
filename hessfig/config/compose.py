"""From Hydra's composed configuration to checked dataclasses; the variants a sweep runs through."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hessfig.config.checks import check
from hessfig.config.plain import as_plain
from hessfig.config.schema import Config
from hessfig.errors import UserError

# Settings of network and task that may differ without measuring something else: depths are compared one by one.
_FREE = (("model", "n_layers"), ("task", "seed"))


def register() -> None:
    """Make the schema known to Hydra under the name config.yaml refers to."""
    ConfigStore.instance().store("schema", Config)


def to_config(composed: DictConfig) -> Config:
    """Return the checked dataclass. Raises UserError for values that cannot be run."""
    return _checked(composed)


def variants(composed: DictConfig, fixed: set[str]) -> list[tuple[str, Config]]:
    """Return (name, config) for every combination of the settings in `sweep.vary`.

    Keys in `fixed` (given on the command line) are not varied. The name lists the varied settings other
    than the number of layers, e.g. 'model.temperature=2.0'; it is empty when nothing else varies.
    """
    vary = {key: list(values) for key, values in composed.sweep.vary.items() if key not in fixed}
    return [(_name(choice), _checked(_with(composed, choice))) for choice in _combinations(vary)]


def check_composition(arguments: list[str]) -> None:
    """Compose every run asked for; raise UserError for a value its setting cannot take, in our words not Hydra's.

    With -m all runs are checked before the first one starts.
    """
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    several = any(argument in ("-m", "--multirun") for argument in arguments)
    for run in _runs(overrides) if several else [overrides]:
        try:
            composed = _compose(run)
        except (HydraException, OmegaConfBaseException) as error:
            raise _value_error(error.__cause__ or error, run) from error
        if several:
            variants(composed, {word.partition("=")[0] for word in run})


def sweep_fit(sweep: str) -> tuple[list[tuple[float | None, float | None]], str]:
    """Return the fit windows of a sweep's own configuration, and the average over seeds that slopes are fitted to."""
    settings = _compose([f"sweep={sweep}"]).sweep
    return [(low, high) for low, high in settings.windows], settings.average.value


def differing_setting(manifest: Path, composed: DictConfig, keys: set[str]) -> tuple[str, Any, Any] | None:
    """Return (key, made with, asked for) of the first setting in `keys` whose value the manifest contradicts."""
    if not manifest.exists():
        return None
    made = OmegaConf.create(json.loads(manifest.read_text())["config"])
    asked = OmegaConf.create(as_plain(to_config(composed)))
    for key in sorted(keys - {"sweep.windows"}):
        before, now = OmegaConf.select(made, key), OmegaConf.select(asked, key)
        if before is not None and not OmegaConf.is_config(before) and before != now:
            return key, before, now
    return None


def matching_folder(output_dir: str, sweep: str, composed: DictConfig, fixed: set[str]) -> Path:
    """Return outputs/<sweep>. Raises UserError when a setting given now is not the one the table was made with."""
    folder = Path(output_dir) / sweep
    difference = differing_setting(folder / "manifest.json", composed, fixed)
    if difference:
        key, made, asked = difference
        raise UserError(
            f"{folder}/table.csv is from another config: {key} was {made}",
            got=f"{key}={asked}",
            allowed=f"{key}={made}",
            remedy=f"hessfig run sweep={sweep} {key}={asked}",
        )
    return folder


def departures(manifest: Path, sweep: str) -> list[str]:
    """Return the settings of network and task in a manifest that are not those of the shipped sweep."""
    made, own = json.loads(manifest.read_text())["config"], as_plain(to_config(_compose([f"sweep={sweep}"])))
    return [
        f"{group}.{key}={made[group][key]} (the paper: {value})"
        for group in ("model", "task")
        for key, value in own[group].items()
        if (group, key) not in _FREE and made[group].get(key, value) != value
    ]


def _compose(overrides: list[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_module("hessfig.conf", version_base="1.3"):
        return compose("config", overrides=overrides)


def _runs(overrides: list[str]) -> Iterator[list[str]]:
    """Return the overrides of every run of -m: each combination of the values in key=a,b."""
    choices = []
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(f"cannot run {override.input_line!r}", allowed="key=a,b,c or key=range(a,b)")
        values = (
            override.sweep_string_iterator()
            if override.is_sweep_override()
            else [override.get_value_element_as_str()]
        )
        choices.append([f"{override.get_key_element()}={value}" for value in values])
    return map(list, itertools.product(*choices))


def _value_error(error: BaseException, overrides: list[str]) -> UserError:
    lines = str(error).splitlines()
    if lines[0].startswith("Ambiguous value"):
        return UserError(
            lines[0], allowed="one value", remedy="add -m for one run a value, or write a list as [a,b]"
        )
    key = next((line.split(":", 1)[1].strip() for line in lines if "full_key" in line), "")
    got = next((word for word in overrides if key and word.startswith(f"{key}=")), None)
    return UserError(
        f"{key or 'settings'}: {lines[0]}",
        got=got,
        remedy="`hessfig run --help` lists the settings and their types",
    )


def _combinations(vary: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def _name(choice: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in choice.items() if key != "model.n_layers")


def _with(base: DictConfig, choice: dict[str, Any]) -> DictConfig:
    changed = base.copy()
    for key, value in choice.items():
        try:
            OmegaConf.update(changed, key, value)
        except OmegaConfBaseException as error:
            raise UserError(
                f"sweep.vary: {key} cannot be {value!r}", got=value, allowed=str(error).splitlines()[0]
            ) from error
    return changed


def _checked(composed: DictConfig) -> Config:
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), composed))
    assert isinstance(config, Config)
    check(config)
    return config
