"""Models: the networks whose Hessian is measured, and the map from a block to its tensors."""
