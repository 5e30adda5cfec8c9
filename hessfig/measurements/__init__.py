"""Measurements: computes quantities from products with the Hessian, as numbers with errors."""
