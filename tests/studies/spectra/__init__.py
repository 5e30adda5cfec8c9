"""Tests of studies/spectra."""
