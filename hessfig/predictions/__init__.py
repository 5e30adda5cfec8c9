"""Predictions: how block norms grow with sigma, by counting powers; standard library only."""
