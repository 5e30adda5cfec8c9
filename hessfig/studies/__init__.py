"""Studies: scientific subjects that use the core. Each has its own folder and can be removed."""
