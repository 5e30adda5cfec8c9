"""Approximations of blocks of the Hessian by name, their ingredients, and their structured matrices."""
