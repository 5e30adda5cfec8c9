"""Tests of studies/components."""
