"""Where quantities of the user's own found their names in hessfig 0.2.0: files written for it still import them."""

from hessfig.measurements.quantity import Measured, Quantity, Request, row_of

__all__ = ["Measured", "Quantity", "Request", "row_of"]
