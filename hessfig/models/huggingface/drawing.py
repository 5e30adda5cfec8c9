"""The network of transformers with its data and loss, ready to be measured: everything that needs torch."""

from __future__ import annotations

import torch

from hessfig.config.schema import Config
from hessfig.models.huggingface.folder import is_random
from hessfig.models.huggingface.loading import check_layout, check_logits, load, made
from hessfig.models.huggingface.network import CausalNetwork
from hessfig.models.huggingface.sizes import Sizes
from hessfig.models.protocol import Drawn, Layout
from hessfig.tasks.batch import micro_batches
from hessfig.tasks.losses import CrossEntropy
from hessfig.tasks.tokens import Ids


def drawn(config: Config, seed: int, sizes: Sizes, layout: Layout, ids: Ids, at_once: int) -> Drawn:
    """Return the model with its sequences in micro-batches of `at_once` (the last may be smaller).

    Raises UserError when the folder holds something else than its config.json says.
    """
    where = str(config.model.path or config.model.architecture)
    model = load(config, seed)
    check_layout(model, layout, where)
    network, tokens = CausalNetwork(model, sizes.names), torch.tensor(ids)
    check_logits(network, tokens, where)
    batches = micro_batches(tokens, config.task.first_scored, at_once)
    return Drawn(network, batches[0], CrossEntropy(), layout, tuple(batches[1:]))


def check(config: Config, sizes: Sizes, layout: Layout, ids: Ids) -> None:
    """Raise UserError when `drawn` would: the weights of a folder are read, random ones are not drawn."""
    if is_random(config):
        check_layout(made(config, "meta"), layout, str(config.model.path or config.model.architecture))
    else:
        drawn(config, 0, sizes, layout, ids, len(ids))
