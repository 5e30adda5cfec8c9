"""The same way to look at a figure's artists as in tests/figures."""

from tests.figures.conftest import deep, pages

__all__ = ["deep", "pages"]
