"""A sweep beside published values or another run."""
