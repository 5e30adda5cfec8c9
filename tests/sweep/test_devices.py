"""Every engine on a GPU gives the CPU's numbers: probes are drawn on the CPU, so that only rounding differs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from hessfig.config.enums import DType, Method, Norm, Products
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.sweep.measure import measure
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant

TOLERANCE = {DType.float64: 1e-10, DType.float32: 2e-3}
ENGINES = {
    "hutchinson": EstimatorConfig(),
    "curvlinops": EstimatorConfig(products=Products.curvlinops),
    "aligned": EstimatorConfig(method=Method.aligned),
    "auto": EstimatorConfig(method=Method.auto),
    "dense": EstimatorConfig(method=Method.dense),
    "xtrace": EstimatorConfig(method=Method.xtrace),
}


def numbers(config: Config, device: str) -> list[dict[str, Any]]:
    return measure(Cell(Variant("", dataclasses.replace(config, device=device)), 0.5, 1234)).rows


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", [Norm.none, Norm.pre])
def test_the_gpu_gives_the_numbers_of_the_cpu(engine: str, dtype: DType, norm: Norm) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    model = ModelConfig(n_layers=2, d_model=8, norm=norm)
    task = TaskConfig(digits=1, batch_size=3)
    config = Config(model=model, task=task, estimator=ENGINES[engine], dtype=dtype)
    on_cpu, on_gpu = numbers(config, "cpu"), numbers(config, "cuda")
    for ours, theirs in zip(on_cpu, on_gpu, strict=True):
        assert theirs["value"] == pytest.approx(ours["value"], rel=TOLERANCE[dtype]), ours
