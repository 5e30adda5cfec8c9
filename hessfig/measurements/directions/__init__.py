"""The loss beside its second-order expansion: along directions, along gradient descent, at critical points."""
