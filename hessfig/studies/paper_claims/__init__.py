"""Claims of the paper beyond its figures: shares of the functional part, growth rates, sublayers."""

from hessfig.registry import Study

STUDY = Study(page="docs/paper-vs-code.md")
