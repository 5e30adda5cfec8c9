"""What the shipped files are made without Hydra is what Hydra makes of them, to the type and flag of every setting."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, ListConfig

from hessfig.config.compose import job
from hessfig.config.compose.shipped import shipped
from hessfig.config.presets import names
from hessfig.config.schema import GROUPS

# Each form of a file and of a word once: choices of a sweep's own, of a preset that sets anything, of both at once;
# numbers, texts, lists, references, new entries, words that are given twice.
FORMS = [
    [],
    ["sweep=language", "figure=6", "seeds=2"],
    ["figure=1", "figure.options={variant: x}", "figure.title='a, b'"],
    ["sweep=entries", "state=trained", "training=addition", "model=vit", "++model.options.x=3", "state=loaded"],
    ["sweep.vary={model.d_model: [4, 6]}", "sweep.windows=[[null,1],[2,3]]", "grid.values=[1,2.5,1e-3]"],
    ["estimator=dense", "seeds=${first_seed}", "model.path=null", "blocks=[W_Q,'W_E']", "seeds=3", "dtype=float32"],
    ["sweep=sigma", "sweep=gpt2", "figure=none", "sweep.variants=[{},{model.scores: cosine}]"],
]
EVERY = [[f"{group}={name}"] for group in GROUPS for name in names(group)]
# What Hydra refuses, and what it understands in ways of its own.
LEFT = [
    *(["seeds=x"], ["nosuch=3"], ["model.nosuch=3"], ["sweep=nosuch"], ["seeds=1,2"], ["model=[vit]"], ["seeds=[1"]),
    *(["~sweep"], ["+seeds=3"], ["model@a=vit"], ["hydra.verbose=true"], ["model={kind: vit}"]),
]


@pytest.mark.parametrize("words", [*FORMS, *(pytest.param(one, marks=pytest.mark.slow) for one in EVERY)], ids=" ".join)
def test_what_is_made_is_what_hydra_makes(words: list[str]) -> None:
    found, theirs = shipped(words), job._composed(tuple(words), None)
    assert found is not None
    assert _all_of(found) == _all_of(theirs)


@pytest.mark.parametrize("words", LEFT, ids=" ".join)
def test_what_is_written_in_other_ways_is_left_to_hydra(words: list[str]) -> None:
    assert shipped(words) is None


def test_what_is_made_may_be_changed() -> None:
    words = ["sweep=language", "figure=1"]
    first, second = shipped(words), shipped(words)
    assert first is not None and second is not None
    first.figure.options["variant"] = first.sweep.name = "mine"
    first.blocks.append("W_Q")
    assert _all_of(second) == _all_of(job._composed(tuple(words), None)) == _all_of(shipped(words))


def _all_of(node: Any) -> Any:
    """Return everything that a node is: its keys in order, its values, and what OmegaConf keeps beside them."""
    beside = {key: value for key, value in vars(node._metadata).items() if key not in ("flags", "resolver_cache")}
    flags = {key: value for key, value in (node._metadata.flags or {}).items() if value is not None}
    held = node._content if isinstance(node, DictConfig | ListConfig) else node._value()
    if isinstance(held, dict):
        held = [(key, _all_of(one)) for key, one in held.items()]
    elif isinstance(held, list):
        held = [_all_of(one) for one in held]
    return type(node), type(held), held, beside, flags
