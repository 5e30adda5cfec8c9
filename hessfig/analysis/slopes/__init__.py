"""Fitted growth rates: errors, verdicts, gate."""
