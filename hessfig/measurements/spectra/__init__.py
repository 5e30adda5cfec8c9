"""Spectra of diagonal blocks: all eigenvalues, the outermost, and densities."""
