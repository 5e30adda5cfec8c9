"""Approximations of blocks of the Hessian: what they are made of, their matrices, and each by its name."""
