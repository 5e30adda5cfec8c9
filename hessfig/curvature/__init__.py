"""Curvature: a problem and its products, exact norms from bottlenecks, eigenvalues and densities; probes."""
