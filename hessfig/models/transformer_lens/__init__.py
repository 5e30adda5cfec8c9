"""TransformerLens networks: a state as HookedTransformer or the bridge saves it, converted to plain torch."""

from __future__ import annotations

from hessfig.config.schema import Config, ModelConfig
from hessfig.errors import UserError
from hessfig.models.huggingface.batches import Plan
from hessfig.models.huggingface.data import check_measured, ids_of, plan_of, source_of
from hessfig.models.protocol import Drawn, Kind, Layout
from hessfig.models.transformer_lens.folder import files, fingerprint, settings_of, weights_of
from hessfig.models.transformer_lens.layout import layout_of
from hessfig.models.transformer_lens.settings import Sizes, sizes_of
from hessfig.tasks.tokens import Ids


def layout(config: Config) -> Layout:
    """Return the weights that config.json calls for."""
    return layout_of(_sizes(config))


def draw(config: Config, sigma: float | None, seed: int) -> Drawn:
    """Return the network with the state's weights, its sequences in micro-batches, and cross-entropy."""
    del sigma, seed
    from hessfig.models.transformer_lens.drawing import drawn

    at_once = _plan(config).sequences
    return drawn(config, layout(config), _ids(config), at_once)


def axes(config: Config) -> frozenset[str]:
    """Return that neither sigma nor seed changes a stored network."""
    del config
    return frozenset()


def source(config: Config) -> str:
    """Return a hash of sizes, weights and tokens by content, and of the micro-batch where there are several."""
    return source_of(config, fingerprint(config), _plan(config), lambda: _ids(config))


def about(config: Config) -> str:
    """Return how the sequences are held."""
    return str(_plan(config))


def _check(config: Config) -> None:
    """Raise UserError for settings under which no such network, or no such data, can be had."""
    for name in ("random", "download", "options"):
        if getattr(config.model, name) != getattr(ModelConfig(), name):
            raise UserError(
                f"model.{name} is for model.kind=huggingface",
                got=getattr(config.model, name),
                allowed="model=transformer_lens reads the state of model.path as it is",
                remedy=f"leave model.{name} out",
            )
    check_measured(config, is_random=False)
    _plan(config)
    _check_state(config)
    _ids(config)


def _check_state(config: Config) -> None:
    """Raise UserError for a state that is not that of its config.json: the file is read, which takes torch."""
    from hessfig.models.transformer_lens.drawing import read

    read(config)


def _sizes(config: Config) -> Sizes:
    return sizes_of(*settings_of(config))


def _plan(config: Config) -> Plan:
    return plan_of(config, _sizes(config), layout(config))


def _ids(config: Config) -> Ids:
    return ids_of(config, _sizes(config), weights_of(config).parent)


KIND = Kind(layout=layout, draw=draw, axes=axes, check=_check, files=files, source=source, about=about)
