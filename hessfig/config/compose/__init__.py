"""Composition: from key=value words, the shipped YAML files and a user's own to checked settings. The door to Hydra."""

# ruff: noqa: F401 - names for others

from hessfig.config.compose.job import PATHS, Job, compose, jobs, settled_again
from hessfig.config.compose.provenance import (
    Preset,
    as_made,
    command_of,
    departures,
    differences,
    manifest_of,
    matching_folder,
    preset_in,
    preset_of,
    table_folder,
    title,
    unchanged_preset,
)
