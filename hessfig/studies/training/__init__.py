"""Trainings compared: races of update rules, critical batch sizes, edges of stability, surviving heterogeneity."""

from hessfig.registry import Study

STUDY = Study(layouts=("steps", "race", "critical_batch", "heterogeneity_trained", "edge"), page="docs/training.md")
