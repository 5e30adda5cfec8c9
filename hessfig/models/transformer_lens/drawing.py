"""The converted network with its data and loss, ready to be measured: everything that needs torch."""

from __future__ import annotations

import torch
from torch import Tensor

from hessfig.config.schema import Config
from hessfig.files import check_pin
from hessfig.models.huggingface.folder import KEY, pin_of
from hessfig.models.protocol import Drawn, Layout
from hessfig.models.stored import FLOATING, hashed, tensors_of
from hessfig.models.transformer_lens.conversion import converted
from hessfig.models.transformer_lens.folder import digest, settings_of, weights_of
from hessfig.models.transformer_lens.network import HookedNetwork
from hessfig.models.transformer_lens.settings import Sizes, sizes_of
from hessfig.tasks.batch import micro_batches
from hessfig.tasks.losses import CrossEntropy
from hessfig.tasks.tokens import Ids


def drawn(config: Config, layout: Layout, ids: Ids, at_once: int) -> Drawn:
    """Return the network with its sequences in micro-batches of `at_once`.

    Raises UserError when the file holds something else than its config.json says.
    """
    sizes, weights = read(config)
    with torch.device("meta"):
        network = HookedNetwork(sizes)
    network.load_state_dict(weights, assign=True)
    network.eval().requires_grad_(False)
    batches = micro_batches(torch.tensor(ids), config.task.first_scored, at_once)
    return Drawn(network, batches[0], CrossEntropy(), layout, tuple(batches[1:]))


def read(config: Config) -> tuple[Sizes, dict[str, Tensor]]:
    """Return the network's numbers, and what HookedNetwork holds, from files that are those that were planned.

    Raises UserError when they are not, or when the file holds something else.
    """
    (settings, where), path = settings_of(config), weights_of(config)
    sizes, (content, own) = sizes_of(settings, where), hashed(path, KEY)
    check_pin(path, KEY, found=digest(sizes, own), planned=pin_of(config, 0))
    dtype = getattr(torch, config.dtype)
    tensors = {
        name: one.to(dtype) if one.dtype in FLOATING else one
        for name, one in tensors_of(content, path, KEY).items()
    }
    return sizes, converted(tensors, sizes, str(path), settings.get("architecture"))
