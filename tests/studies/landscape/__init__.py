"""Tests of studies/landscape."""
