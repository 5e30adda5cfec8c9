"""Small networks, problems and sweeps that the tests share."""

from __future__ import annotations

from hessfig.config import (
    MLP,
    Attention,
    Config,
    Data,
    DType,
    GridConfig,
    Kind,
    Loss,
    ModelConfig,
    Norm,
    QueryKey,
    TaskConfig,
)
from hessfig.curvature.problem import Problem
from hessfig.models.build import build_model
from hessfig.tasks.batch import draw_batch
from hessfig.tasks.losses import loss_module

ARCHITECTURES = {
    "softmax": ModelConfig(d_model=4, d_mlp=6),
    "pre": ModelConfig(d_model=4, d_mlp=6, n_layers=2, norm=Norm.pre),
    "post": ModelConfig(d_model=4, d_mlp=6, norm=Norm.post, mlp=MLP.gelu),
    "two layers": ModelConfig(d_model=4, d_mlp=6, n_layers=2, temperature=1.7),
    "heads": ModelConfig(d_model=4, d_mlp=6, n_heads=2, d_head=3, mlp=MLP.gelu),
    "linear": ModelConfig(d_model=4, d_mlp=6, attention=Attention.linear),
    "chain": ModelConfig(
        d_model=4, n_layers=2, attention=Attention.linear, attention_skip=False, mlp=MLP.none
    ),
    "single": ModelConfig(d_model=4, d_mlp=6, query_key=QueryKey.single, n_heads=2),
    "linear mlp": ModelConfig(kind=Kind.linear_mlp, d_model=4, n_layers=3),
    "bare": ModelConfig(kind=Kind.self_attention, d_model=4),
    "bare linear": ModelConfig(kind=Kind.self_attention, d_model=4, attention=Attention.linear),
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


def toy_problem(
    model: ModelConfig, task: TaskConfig | None = None, *, sigma: float = 0.7, seed: int = 1234
) -> Problem:
    """Return a float64 problem of `model` on its toy task."""
    task = task or toy_task(model)
    batch = draw_batch(task, width=model.d_model, dtype=DType.float64)
    network = build_model(model, sigma=sigma, seed=seed, length=batch.length, dtype=DType.float64)
    return Problem(network, batch, loss_module(task.loss))


def toy_config(output_dir: object = "outputs", **settings: object) -> Config:
    """Return a sweep of two sigmas and two repeats over a linear MLP, cheap enough for many runs."""
    chosen = {
        "model": ARCHITECTURES["linear mlp"],
        "task": TaskConfig(digits=1, batch_size=3),
        "grid": GridConfig(points=2),
        "blocks": ["W"],
        "seeds": 2,
        "workers": 1,
        "output_dir": str(output_dir),
    }
    return Config(**{**chosen, **settings})  # type: ignore[arg-type]
