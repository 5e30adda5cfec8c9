"""Spectra of symmetric blocks: all eigenvalues, the outermost eigenvalues, and densities, each with its error."""
