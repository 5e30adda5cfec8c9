"""Composition: from key=value words, the shipped YAML files and a user's own to checked settings. The door to Hydra."""

from hessfig.config.compose.made import departures, differences, manifest_of, matching_folder
from hessfig.config.compose.request import Request, compose, requests

__all__ = [
    "Request",
    "compose",
    "departures",
    "differences",
    "manifest_of",
    "matching_folder",
    "requests",
]
