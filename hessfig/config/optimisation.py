"""The values of settings that are a choice: of a training, and of the landscape it ends in."""

from __future__ import annotations

from enum import StrEnum


class Direction(StrEnum):
    """Which way from the state the landscape is looked at."""

    random = "random"
    gradient = "gradient"


class Optimiser(StrEnum):
    """The rule of a training; `gd` is plain gradient descent on the whole of a fixed set."""

    adamw = "adamw"
    adam = "adam"
    sgd = "sgd"
    gd = "gd"


class Schedule(StrEnum):
    """What the learning rate does after its warm-up: falls as a cosine to zero at the last step, or stays."""

    cosine = "cosine"
    constant = "constant"


class TrainingData(StrEnum):
    """What a training sees: fresh sums at every step, or the task's own batch over and over."""

    fresh = "fresh"
    fixed = "fixed"
