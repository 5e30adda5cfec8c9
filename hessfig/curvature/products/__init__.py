"""Products of the Hessian with vectors: on the linearised network, and through curvlinops."""
