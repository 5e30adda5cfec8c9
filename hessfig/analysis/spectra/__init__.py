"""Spectra: smoothing and bands of densities, quantiles, and how far two spectra are from each other."""
