"""Settings that cannot be run are named, with the value, what is allowed, and what to do."""

import math

import pytest

from hessfig.config.checks import check_config
from hessfig.config.enums import Attention, Data, Kind, Loss, Method, Norm, QueryKey
from hessfig.config.schema import Config, SweepConfig
from hessfig.config.science import EstimatorConfig, GridConfig, ModelConfig, TaskConfig
from hessfig.errors import UserError

GAUSSIAN = TaskConfig(data=Data.gaussian, loss=Loss.mse)


def bare(**settings):
    model = ModelConfig(kind=Kind.self_attention, d_model=8, **settings)
    return {"model": model, "task": GAUSSIAN, "blocks": ["W_V"]}


BAD = {
    "model.d_mlp": {"model": ModelConfig(d_mlp=-1)},
    "temperature": {"model": ModelConfig(temperature=math.nan)},
    "norm=post": {"model": ModelConfig(norm=Norm.post, attention_skip=False)},
    "no output projection": bare(n_heads=2, d_head=3),
    "is one layer": bare(n_layers=2),
    "model.norm: kind=self_attention does not read it": bare(norm=Norm.pre),
    r"grid\.high": {"grid": GridConfig(high=math.inf)},
    r"grid\.low is above": {"grid": GridConfig(low=2.0, high=1.0)},
    "variance_share": {"estimator": EstimatorConfig(variance_share=1.0)},
    "square loss": {**bare(), "task": TaskConfig(data=Data.gaussian)},
    "parts is empty": {"parts": []},
    "workers": {"workers": -1},
    "tolerance": {"tolerance": math.nan},
    "a window is two sigmas": {"sweep": SweepConfig(windows=[[1.0]])},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_settings_are_refused_by_name(message):
    with pytest.raises(UserError, match=message) as caught:
        check_config(Config(**BAD[message]))
    assert caught.value.allowed
    assert caught.value.remedy
    assert caught.value.got is not None


GOOD = [
    {},
    {"model": ModelConfig(d_model=8, n_heads=3, d_head=5)},
    {"model": ModelConfig(query_key=QueryKey.single), "blocks": ["W_QK"]},
    {"estimator": EstimatorConfig(method=Method.xtrace, num_probes=8)},
    {"grid": GridConfig(values=[0.5])},
    {"grid": GridConfig(low=1.0, high=1.0, points=1)},
    {"sweep": SweepConfig(windows=[[None, 1], [0.1, None], [None, None], [0.1, 1.0]])},
    {"workers": 3},
    bare(n_heads=2),
    bare(attention=Attention.linear, d_head=3),
]


@pytest.mark.parametrize("settings", GOOD)
def test_settings_that_can_be_run_pass(settings):
    check_config(Config(**settings))
