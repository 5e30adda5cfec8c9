"""The loss next to its second-order expansion: along directions, along gradient descent, at critical points."""
