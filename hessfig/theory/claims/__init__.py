"""Statements as data: printed formula, corrected formula, oracle."""
