"""Tests of studies/removal."""
