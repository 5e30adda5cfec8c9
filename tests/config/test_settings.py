"""Every setting is told once: lists by role cover all of them, and are those that keys and tables have had."""

from typing import get_type_hints

import pytest

from hessfig.config import keys
from hessfig.config.facts import IN_MANIFEST, OF_NUMBERS, TABLE, VARIED, Role
from hessfig.config.schema import GROUPS, Config
from hessfig.config.settings import (
    open_settings,
    role_of,
    settings,
    top_level,
    with_role,
)
from hessfig.errors import UserError
from hessfig.verbs import VERBS

# What keys of cells, hashes of manifests and names of folders rest on: a change here
# makes other cells.
PINS = {"task.sha256", "model.sha256", "state.sha256"}
PLACES = {"model.path", "model.download", "task.path"}
ADDED = {
    "estimator.rules",
    "spectrum.starts",
    "model.initialisation",
    "model.sink",
    "model.sink_beta",
    "model.scaled_weight",
    "model.weight_scale",
    "model.patch",
    "model.path",
    "model.random",
    "model.download",
    "model.architecture",
    "model.vocabulary",
    "task.path",
    "task.length",
    "task.first_scored",
    "task.base",
    "training.curvature",
    "training.refresh",
    "model.attention_bias",
    "model.differential_lambda",
    "model.differential_norm",
    "model.scores",
    "model.softcap",
    "model.centring",
    "model.norm_kind",
    "model.norm_eps",
    "model.positions",
    "model.n_kv_heads",
    "model.gate",
    "model.tied",
    "model.window",
    "model.residual_scale",
    "task.label_smoothing",
    "task.weight_decay",
    "task.correlation",
    "landscape.dimensions",
    "approximation.subsets",
    "approximation.left_out",
    "model.name",
    "task.masked_share",
    "task.masked_as",
    "task.mask_id",
    "task.draw",
    "state.draw",
    "estimator.probes",
    "training.damping",
    "training.clip_norm",
    "directions.named",
    "directions.rules",
    "directions.gradients",
    "directions.starts",
    *PINS,
}
OF_NETWORKS = (
    "task",
    "model",
    "state",
    "training",
    "grid",
    "estimator",
    "spectrum",
    "landscape",
    "approximation",
    "directions",
    "compression",
)
EXTENT = ("quantities", "blocks", "parts", "seeds", "first_seed")
TOP = {
    VARIED: {*OF_NETWORKS, "dtype"},
    TABLE: {*OF_NETWORKS, "sweep", *EXTENT, "dtype"},
    IN_MANIFEST: {*OF_NETWORKS, "sweep", *EXTENT, "dtype", "device"},
    (Role.machine,): {"launcher", "workers", "force_workers"},
    (Role.machine, Role.command): {
        "launcher",
        "workers",
        "force_workers",
        "shard",
        "dry_run",
        "output_dir",
    },
}


def test_keys_rest_on_the_same_settings():
    assert with_role(Role.pin) == PINS
    assert with_role(Role.place) == PLACES
    assert set(keys.ADDED) == ADDED


@pytest.mark.parametrize("roles", TOP, ids=str)
def test_lists_of_settings_are_read_from_roles(roles):
    assert set(top_level(*roles)) == TOP[roles]


def test_a_sweep_is_named_read_and_measured():
    inside = {
        key: role
        for key in settings()
        if key.startswith("sweep.")
        for role in [role_of(key)]
    }
    assert inside == {
        **dict.fromkeys(("sweep.name", "sweep.about"), Role.label),
        **dict.fromkeys(("sweep.vary", "sweep.variants", "sweep.axis"), Role.extent),
        **dict.fromkeys(
            ("sweep.windows", "sweep.average", "sweep.predictions"), Role.fit
        ),
    }
    assert "sweep.axis" in with_role(*OF_NUMBERS)
    assert role_of("sweep") == Role.label


def test_words_that_ask_nothing_of_a_table():
    single = {key for key in with_role(Role.reading) if "." not in key}
    assert single == {
        "style",
        "tolerance",
        "levels",
        "quantity",
        "rows",
        "part",
        "format",
        "powers_of",
    }
    assert (
        role_of("figure")
        == role_of("figure.width")
        == role_of("figure.options.columns")
        == Role.reading
    )


def test_every_setting_has_a_role_and_a_verb():
    """A new setting is one place: what is not given a role has that of its group, and the verbs of its role."""
    assert {key for role in Role for key in with_role(role)} == {
        *settings(),
        "config_dir",
    }
    assert sum(len(with_role(role)) for role in Role) == len(settings()) + 1
    assert set(open_settings()) == {
        "sweep.vary",
        "sweep.predictions",
        "figure.options",
        "figure.where",
        "model.options",
    }
    assert {key.partition(".")[0] for key in settings() if "." in key} == set(GROUPS)
    composed = [verb for verb in VERBS.values() if verb.composed]
    unread = {
        key for key in settings() if not any(verb.takes(key) for verb in composed)
    }
    assert unread == {"figure.group", "figure.order", "figure.published"}
    assert set(get_type_hints(Config)) == {
        key.partition(".")[0] for key in settings()
    } | {"config_dir"}


def test_defaults_and_examples_are_allowed():
    for setting in settings().values():
        assert setting.about, setting.key
        assert setting.kind, setting.key
    for key, low in (
        ("seeds", 0),
        ("training.momentum", 1.0),
        ("launcher.time", "soon"),
        ("rows", []),
    ):
        with pytest.raises(UserError, match=key) as caught:
            settings()[key].check(low)
        assert caught.value.allowed
        assert key in caught.value.remedy
