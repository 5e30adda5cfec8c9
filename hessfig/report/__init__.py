"""The report: one self-contained HTML page on every sweep of an outputs folder."""
