"""Trainings compared: races of update rules, edges of stability, surviving heterogeneity."""

from hessfig.registry import Study

STUDY = Study(page="docs/studies/training.md")
