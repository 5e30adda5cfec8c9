"""Small networks, problems and sweeps that the tests share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hessfig.config.enums import (
    MLP,
    Attention,
    Data,
    DType,
    Kind,
    Loss,
    Method,
    Norm,
    Products,
    QueryKey,
    State,
)
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, GridConfig, ModelConfig, TaskConfig
from hessfig.config.training_settings import StateConfig, TrainingConfig
from hessfig.curvature.problem import Objective
from hessfig.models.exact.exact_blocks import ExactEngine
from hessfig.models.protocol import kind
from hessfig.states.initialised import build_network
from hessfig.states.point import drawn
from hessfig.terms import Part
from hessfig.weights import Layout


class PAPER:
    """The choices of the paper's networks, which every engine knows."""

    attentions = (Attention.softmax, Attention.linear)
    norms = (Norm.none, Norm.pre, Norm.post)
    mlps = (MLP.relu, MLP.gelu, MLP.linear, MLP.none)


# Routes of products that are exact up to rounding.
EXACT_PRODUCTS = [one for one in Products if one != Products.differences]
ARCHITECTURES = {
    "softmax": ModelConfig(d_model=4, d_mlp=6),
    "pre": ModelConfig(d_model=4, d_mlp=6, n_layers=2, norm=Norm.pre),
    "post": ModelConfig(d_model=4, d_mlp=6, norm=Norm.post, mlp=MLP.gelu),
    "two layers": ModelConfig(d_model=4, d_mlp=6, n_layers=2, temperature=1.7),
    "heads": ModelConfig(d_model=4, d_mlp=6, n_heads=2, d_head=3, mlp=MLP.gelu),
    "linear": ModelConfig(d_model=4, d_mlp=6, attention=Attention.linear),
    "chain": ModelConfig(
        d_model=4,
        n_layers=2,
        attention=Attention.linear,
        attention_skip=False,
        mlp=MLP.none,
    ),
    "single": ModelConfig(d_model=4, d_mlp=6, query_key=QueryKey.single, n_heads=2),
    "linear mlp": ModelConfig(kind=Kind.linear_mlp, d_model=4, n_layers=3),
    "bare": ModelConfig(kind=Kind.self_attention, d_model=4),
    "bare linear": ModelConfig(
        kind=Kind.self_attention, d_model=4, attention=Attention.linear
    ),
}


def toy_task(model: ModelConfig, **settings: object) -> TaskConfig:
    """Return a task of three one-digit sums (or Gaussian rows) that fits `model`."""
    gaussian = model.kind == Kind.self_attention
    chosen = {
        "data": Data.gaussian if gaussian else Data.addition,
        "loss": Loss.mse if gaussian else Loss.cross_entropy,
        "digits": 1,
        "batch_size": 3,
    }
    return TaskConfig(**{**chosen, **settings})


def build_model(
    model: ModelConfig, *, sigma: float, seed: int, length: int, dtype: DType
) -> nn.Module:
    """Return the network of `model` for sequences of `length` tokens."""
    config = Config(
        model=model, task=toy_task(model, digits=(length - 3) // 3), dtype=dtype
    )
    return build_network(config, sigma=sigma, seed=seed)


def layout_of(model: ModelConfig, task: TaskConfig | None = None) -> Layout:
    """Return the weights of `model` on its toy task."""
    return kind(model.kind).layout(Config(model=model, task=task or toy_task(model)))


def toy_problem(
    model: ModelConfig,
    task: TaskConfig | None = None,
    *,
    sigma: float = 0.7,
    seed: int = 1234,
    dtype: DType = DType.float64,
) -> Objective:
    """Return a problem of `model` on its toy task."""
    config = Config(model=model, task=task or toy_task(model), dtype=dtype)
    return drawn(config, sigma=sigma, seed=seed)


def exact_norms(
    objective: Objective,
    layer: int,
    col: str,
    rows: Sequence[str],
    parts: Sequence[Part],
    *,
    model: ModelConfig,
) -> dict[tuple[str, Part], float]:
    """Return the exact norms of a column of blocks by an engine of their own."""
    return ExactEngine(objective, model).column(layer, col, rows, parts)


def toy_config(output_dir: object = "outputs", **settings: object) -> Config:
    """Return a sweep of two sigmas and two repeats over a linear MLP, cheap enough for many runs."""
    chosen = {
        "model": ARCHITECTURES["linear mlp"],
        "task": TaskConfig(digits=1, batch_size=3),
        "grid": GridConfig(points=2),
        "blocks": ["W"],
        "estimator": EstimatorConfig(Method.hutchinson),
        "seeds": 2,
        "workers": 1,
        "output_dir": str(output_dir),
    }
    return Config(**{**chosen, **settings})  # type: ignore[arg-type]


def training_config(
    output_dir: object, *, step: object = None, **settings: object
) -> Config:
    """Return a sweep at one sigma over a training of thirty updates, two digits, a pre-LN network of width 4."""
    training = {
        "steps": 30,
        "warmup": 5,
        "batch_size": 4,
        "evaluate_every": 10,
        "evaluation_size": 20,
    }
    known = set(vars(TrainingConfig())) - {"dtype"}
    asked = {name: settings.pop(name) for name in list(settings) if name in known}
    chosen = {
        "model": ModelConfig(d_model=4, d_mlp=6, n_heads=2, norm=Norm.pre),
        "task": TaskConfig(digits=2, batch_size=6),
        "grid": GridConfig(values=[0.3]),
        "state": StateConfig(State.trained, step=step),
        "training": TrainingConfig(**{**training, **asked}),
        "blocks": ["W_V"],
        "estimator": EstimatorConfig(Method.dense),
    }
    return toy_config(output_dir, **{**chosen, **settings})
