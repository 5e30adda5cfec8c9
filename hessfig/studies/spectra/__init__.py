"""Spectra of blocks: densities, distances between weights, attention sinks, and scales of single weights."""

from hessfig.registry import Study

STUDY = Study(layouts=("spectra", "heterogeneity", "sinks", "gauss_newton", "weight_norms"), page="docs/spectra.md")
