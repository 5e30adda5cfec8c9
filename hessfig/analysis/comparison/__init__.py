"""A sweep next to published values or another run."""
