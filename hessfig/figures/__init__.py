"""Figures: from curves and slopes to sheets (no torch)."""

from hessfig.errors import UserError

try:
    import matplotlib  # noqa: F401  (here first: it reads the user's matplotlibrc, of which no figure depends)
except (ValueError, OSError) as error:
    raise UserError(
        "matplotlib cannot read its settings",
        got=f"{type(error).__name__}: {error}"[:300],
        allowed="a matplotlibrc (here, or where MATPLOTLIBRC points) in UTF-8, and an installed backend",
        remedy="fix or move that file, or unset MPLBACKEND",
    ) from error
