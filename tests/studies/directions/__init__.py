"""Tests of studies/directions."""
