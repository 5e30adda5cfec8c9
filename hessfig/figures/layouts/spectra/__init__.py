"""Spectra: eigenvalues and densities, distances between blocks, and how the outermost eigenvalues change."""
