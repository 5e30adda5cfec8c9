"""hessfig plot and report: what the settings know of figures and sweeps, given to whoever draws them."""
