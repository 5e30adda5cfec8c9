"""hessfig measures the blocks of a transformer's Hessian and redraws the figures that rest on them."""

__version__ = "0.1.0"
