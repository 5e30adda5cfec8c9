"""Composition as the verbs do it, for tests."""

from __future__ import annotations

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from hessfig.config.compose import register


def compose(overrides: list[str]) -> DictConfig:
    """Compose conf/config.yaml with `overrides`."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_module("hessfig.conf", version_base="1.3"):
        return hydra_compose("config", overrides=overrides)
