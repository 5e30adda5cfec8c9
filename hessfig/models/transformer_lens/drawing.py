"""The converted network with its data and loss, ready to be measured: everything that needs torch."""

from __future__ import annotations

import torch
from torch import Tensor

from hessfig.config.schema import Config
from hessfig.models.protocol import Drawn, Layout
from hessfig.models.stored import read_weights
from hessfig.models.transformer_lens.conversion import converted
from hessfig.models.transformer_lens.folder import settings_of, weights_of
from hessfig.models.transformer_lens.network import HookedNetwork
from hessfig.models.transformer_lens.settings import Sizes, sizes_of
from hessfig.tasks.batch import micro_batches
from hessfig.tasks.losses import CrossEntropy
from hessfig.tasks.tokens import Ids


def drawn(config: Config, sizes: Sizes, layout: Layout, ids: Ids, at_once: int) -> Drawn:
    """Return the network with its sequences in micro-batches of `at_once`.

    Raises UserError when the file holds something else than its config.json says.
    """
    network = HookedNetwork(sizes).to(getattr(torch, config.dtype)).eval()
    network.load_state_dict(tensors(config))
    batches = micro_batches(torch.tensor(ids), config.task.first_scored, at_once)
    return Drawn(network, batches[0], CrossEntropy(), layout, tuple(batches[1:]))


def tensors(config: Config) -> dict[str, Tensor]:
    """Return what HookedNetwork holds. Raises UserError when the file does not."""
    (settings, where), path = settings_of(config), weights_of(config)
    found = read_weights(path, "model.path")
    return converted(found, sizes_of(settings, where), str(path), settings.get("architecture"))
