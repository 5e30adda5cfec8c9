"""Settings of a training: which steps are measured and kept, and what is refused."""

import pytest

from hessfig.config.keys import kept_steps, step_values
from hessfig.errors import UserError
from tests.config.composing import job

TRAINED = ("state=trained", "training.steps=50")


def config(*words):
    return job(*TRAINED, *words).config


def test_the_last_step_is_measured_unless_others_are_asked_for():
    assert step_values(config()) == [50]
    assert step_values(config("state.step=7")) == [7]
    assert step_values(config("state.step=[30,0,3]")) == [0, 3, 30]


def test_states_are_kept_where_they_are_asked_for_and_listed_on_the_way():
    assert kept_steps(config("state.step=[0,30]", "training.checkpoints=[10,40]")) == [
        0,
        10,
        30,
    ]


def test_a_trained_state_has_one_sigma_and_three_seeds():
    found = config()
    assert (found.grid.values, found.seeds) == ([0.1], 3)
    assert job(*TRAINED, "grid.values=[1,2]", "seeds=1").config.grid.values == [1, 2]


BAD = {
    ("state.step=51",): [
        "state.step is beyond the end",
        "0 to 50",
        "training.steps=51",
    ],
    ("state.step=[]",): ["state.step is empty", "got:     []", "state.step=[0,50]"],
    ("state.step=-1",): ["state.step", "whole number >= 0"],
    ("state.step=true",): ["state.step", "whole number >= 0"],
    ("state.step=[3,3]",): ["state.step", "named once", "got:     3"],
    ("training.checkpoints=[51]",): ["training.checkpoints is beyond the end"],
    ("training.steps=0",): ["training.steps", "from 1"],
    ("training.learning_rate=0",): ["training.learning_rate", "> 0"],
    ("training.learning_rate=inf",): ["training.learning_rate", "inf"],
    ("training.eps=0",): ["training.eps", "> 0"],
    ("training.betas=[0.9]",): ["training.betas", "two numbers"],
    ("training.betas=[0.9,1]",): ["training.betas[1]", "0 <= beta < 1"],
    ("training.weight_decay=-1",): ["training.weight_decay", ">= 0"],
    ("training.momentum=1",): ["training.momentum", "< 1"],
    ("training.cascades=2",): ["training.cascades", "share from 0 to 1"],
    ("training.evaluate_every=0",): ["training.evaluate_every"],
    ("training.optimiser=lion",): ["training.optimiser", "adamw, adam, sgd, gd"],
    ("training.optimiser=gd",): ["full batch", "training=gd"],
    ("training=lion",): ["there is no training 'lion'", "addition"],
    ("model=self_attention", "task=gaussian"): [
        "no task to train on",
        "task.data=gaussian",
    ],
    ("state=initialised", "state.step=3"): [
        "state.step is read with state.kind=trained",
        "remedy:  state.kind=trained",
    ],
}


@pytest.mark.parametrize("words", BAD, ids=" ".join)
@pytest.mark.long
def test_what_cannot_be_run_is_named(words):
    from hessfig.config.compose.overrides import check_overrides

    with pytest.raises(UserError) as caught:
        check_overrides([*TRAINED, *words])
        config(*words)
    for word in BAD[words]:
        assert word in str(caught.value)
    assert caught.value.allowed
    assert caught.value.remedy
