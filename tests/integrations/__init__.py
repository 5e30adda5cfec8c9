"""Tests of callbacks, loggers and trainers."""
