"""Measurements: one quantity a file or folder, from products of the Hessian to numbers with errors."""
