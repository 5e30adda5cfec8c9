"""Quantities of the loss of the first k samples as k grows: its differences, its gradient, its Hessian."""
