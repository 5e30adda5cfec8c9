"""The values of settings of trainings, and of the landscape around a state."""

from __future__ import annotations

from enum import StrEnum


class Optimiser(StrEnum):
    """The rule of a training; `gd` is plain gradient descent on the whole of a fixed set."""

    adamw = "adamw"
    adam = "adam"
    sgd = "sgd"
    gd = "gd"


class Curvature(StrEnum):
    """What a learning rate is divided by, refreshed on the way: the largest eigenvalue of the loss's Hessian in all
    parameters, or in each by itself (of mean 1); or a stand-in from gradient norms."""

    none = "none"
    whole = "whole"
    blocks = "blocks"
    gradient_norm = "gradient_norm"


class Schedule(StrEnum):
    """What the learning rate does after its warm-up: falls as a cosine to zero at the last step, or stays."""

    cosine = "cosine"
    constant = "constant"


class TrainingData(StrEnum):
    """What a training sees: fresh sums at every step, or the task's own batch over and over."""

    fresh = "fresh"
    fixed = "fixed"


class Direction(StrEnum):
    """Which way from the state the landscape is looked at."""

    random = "random"
    gradient = "gradient"
