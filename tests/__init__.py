"""Tests of hessfig; the folders mirror the package."""
