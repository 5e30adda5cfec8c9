"""Tests of the studies, a folder each."""
