"""Eigenvalues of symmetric blocks: all of them, the outermost, and densities, with the error of each."""
