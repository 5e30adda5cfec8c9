"""hessfig report: what the settings know of figures and sweeps, given to the report."""
