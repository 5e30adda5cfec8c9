"""The house plan as a test: which module may import which, one door a library, size, and clean committed files."""

from __future__ import annotations

import io
import re
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "hessfig").rglob("*.py"))
# Arrows point from right to left: a room may use those before it.
MEASURING = (
    *("errors", "terms", "weights", "record", "files", "register", "rng"),
    *("curvature", "config", "tasks", "models", "states", "measurements", "sweep"),
)
VOCABULARY = MEASURING[: MEASURING.index("rng")]
READING = ("analysis", "figures", "report")
LIGHT = (
    "hessfig.terms",
    "hessfig.record",
    "hessfig.predictions.architecture",
    "hessfig.predictions.growth_rates",
    "hessfig.predictions.monomials",
    "hessfig.predictions.network_series",
)
# What plans and previews read of the measuring wing: names and sizes, never tensors.
WITHOUT_TORCH = ("hessfig.sweep.plan", "hessfig.sweep.preview", "hessfig.sweep.runner", "hessfig.models.registry")
DOORS = {
    "pytorch_optimizer": ("hessfig.states.training.step_rules",),
    "curvlinops": ("hessfig.curvature.curvlinops",),
    "transformer_lens": ("hessfig.models.",),
    "transformers": (
        *("hessfig.models.stored.causal_model", "hessfig.models.stored.tokenizer"),
        "hessfig.integrations.transformers",
    ),
    "lightning": ("hessfig.integrations.lightning",),
    "safetensors": ("hessfig.models.stored.weight_files", "hessfig.states."),
    "hydra": ("hessfig.config.compose",),
    "omegaconf": ("hessfig.config.compose",),
    "matplotlib": ("hessfig.figures",),
    "jinja2": ("hessfig.report.pages",),
    "PIL": ("hessfig.report.drawn_figures",),
    "tueplots": ("hessfig.figures.parts.page",),
}
MOST_FILES = re.compile("bin|css|csv|html|json|md|npz|pdf|png|py|safetensors|svg|toml|txt|yaml|zip")
LIBRARIES = ("matplotlib", "numpy", "pandas", "safetensors", "scipy", "torch", "torchvision", "transformers")
OBJECTS = (
    "axes",
    "bridge",
    "kfac",
    "monitor",
    "parameter",
    "problem",
    "table",
)  # of matplotlib's settings, and in examples


def stale_names(path: Path) -> list[str]:
    """Return the bare names (module.thing) in a module's docstrings and comments that stand for nothing.

    They may be something in a module of that name, a setting, a file, something of a library, or what the module
    itself speaks of: both words are names in its code.
    """
    tokens = list(tokenize.generate_tokens(io.StringIO(path.read_text()).readline))
    own = {token.string for token in tokens if token.type == tokenize.NAME}
    words = [
        t.string for t in tokens if t.type == tokenize.COMMENT or (t.type == tokenize.STRING and '"""' in t.string)
    ]
    found = dict.fromkeys(pair for text in words for pair in BARE.findall(text))
    return [f"{name_of(path)}: {first}.{name}" for first, name in found if not _stands(first, name, own)]


def _stands(first: str, name: str, own: set[str]) -> bool:
    if FILES.fullmatch(name) or first.partition(".")[0] in (*LIBRARIES, *OBJECTS, *sys.stdlib_module_names, "hessfig"):
        return True  # names below hessfig are checked whole
    if "_" in first[1:2] and "_" in name[1:2]:
        return True  # an inner product of two vectors
    if f"{first}.{name}" in _settings() or (first in _settings() and name):
        return True
    homes = [module for module in NAMES if module.endswith(f".{first}") or module == first]
    return any(_is_object(f"{module}.{name}") for module in homes) or {first.partition(".")[0], name} <= own


@cache
def _settings() -> set[str]:
    from hessfig.config.settings import settings

    keys = {*settings()}
    return keys | {key.rpartition(".")[0] for key in keys if "." in key}


def test_bare_names_in_docstrings_are_there() -> None:
    assert [name for module in MODULES for name in stale_names(module)] == []


def test_a_bare_name_of_nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "planted.py"
    path.write_text(
        '"""As bootstrap.fit_slope has it, and fit.no_slope; fit.fit_slope, table.csv and model.norm stand."""\n'
    )
    assert stale_names(path) == ["planted: bootstrap.fit_slope", "planted: fit.no_slope"]
