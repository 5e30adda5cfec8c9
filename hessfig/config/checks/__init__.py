"""Checks of settings at the border: each raises UserError for the first value that cannot be meant."""

from hessfig.config.checks.everything import check

__all__ = ["check"]
