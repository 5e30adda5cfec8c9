"""A small vision transformer on 8 x 8 pictures of digits: patches, learned positions, mean over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.files import fingerprint
from hessfig.models.protocol import Kind
from hessfig.models.structure import is_structural_zero
from hessfig.models.vit.layout import layout
from hessfig.tasks.digits import CLASSES, SIDE, number_of_training

if TYPE_CHECKING:
    from torch import nn


def _skeleton(config: Config) -> nn.Module:
    from hessfig.models.vit.network import VisionTransformer

    return VisionTransformer(config.model, side=SIDE, classes=CLASSES)


def _check(config: Config) -> None:
    if SIDE % config.model.patch:
        raise UserError(
            f"model.patch does not divide the pictures' side of {SIDE} pixels",
            got=config.model.patch,
            allowed=", ".join(str(patch) for patch in range(1, SIDE + 1) if SIDE % patch == 0),
            remedy="model.patch=2",
        )
    most = number_of_training(config.task.path, config.task.sha256)
    if config.task.batch_size > most:
        raise UserError(
            "task.batch_size: there are not as many training pictures",
            got=config.task.batch_size,
            allowed=f"1 to {most}",
            remedy=f"task.batch_size={min(most, 128)}",
        )


def _source(config: Config) -> str:
    """Return the hash of the user's own pictures; none for the bundled ones."""
    return "" if config.task.path is None else config.task.sha256 or fingerprint(Path(config.task.path))


KIND = Kind(
    layout=layout, skeleton=_skeleton, check=_check, is_structural_zero=is_structural_zero, source=_source
)
