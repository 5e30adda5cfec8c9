"""How components of transformers change the growth laws of blocks, and what their ratio means for training."""

from hessfig.registry import Study

STUDY = Study(page="docs/studies/components.md")
