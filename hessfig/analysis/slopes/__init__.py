"""Fitted growth rates: bootstrap, verdicts, gate."""
