"""Tests of hessfig.curvature.large."""
