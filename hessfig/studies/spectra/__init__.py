"""Spectra of blocks: densities, distances between weights, attention sinks, and scales of single weights."""

from hessfig.registry import Study

STUDY = Study(page="docs/studies/spectra.md")
