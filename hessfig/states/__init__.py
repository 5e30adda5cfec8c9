"""States: points of weight space at which a network is measured, drawn from seeds or read from files."""
