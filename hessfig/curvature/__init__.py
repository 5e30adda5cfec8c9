"""Curvature: operators, probes and estimators of block norms."""
