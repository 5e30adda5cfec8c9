"""Quantities beside norms, of networks of transformers: their own numbers, whatever the micro-batches, or a refusal."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from hessfig.errors import UserError
from hessfig.models.stored.token_batches import Plan
from hessfig.states.point import drawn
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from tests.models.tiny_models import SEQUENCES, config_of, model_of, save, save_ids

MEASURED = ["trace", "largest_eigenvalue", "loss", "gradient_norm", "weight_norm"]
REFUSED = {
    "accuracy": "no examples besides its batch",
    "batch_sharpness": "no examples besides its batch",
    "critical_step": "no examples besides its batch",
    "stability_threshold": "no examples besides its batch",
    "training_cost": "no examples besides its batch",
    "preconditioned_eigenvalue": "state=trained",
    "residual_norm": "does not expose what is between its layers",
    "score_spread": "shows no attention scores",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@cache
def saved(name, home):
    found = config_of(save(name, home / name), save_ids(home / "ids.npy"))
    return replace(found, blocks=["W_Q", "W_V.head2", "norms"])


def values(name, quantity, home):
    (cell,) = Sweep([("", replace(saved(name, home), quantities=[quantity]))]).cells
    rows = compute_cell(cell).rows
    assert rows
    for row in rows:
        assert row["status"] == "ok"
    return {
        (row["quantity"], row["layer"], row["row"], row["part"]): row["value"]
        for row in rows
    }


def one_by_one(monkeypatch):
    """Let every sequence be a micro-batch, as a small bound on memory does."""
    monkeypatch.setattr(
        "hessfig.models.stored.token_batches.planned", lambda *_: Plan(1, SEQUENCES, 0)
    )


@pytest.mark.parametrize("quantity", [*MEASURED, "gradient_covariance"])
@pytest.mark.long
def test_micro_batches_change_no_number(quantity, home, monkeypatch):
    whole = values("gpt2", quantity, home)
    one_by_one(monkeypatch)
    assert values("gpt2", quantity, home) == pytest.approx(whole, rel=1e-10, abs=1e-14)


def test_loss_and_norms_are_the_models_own(home):
    model = model_of(drawn(saved("gpt_neox", home), sigma=None, seed=0).network)
    ids = torch.tensor(np.load(home / "ids.npy"))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert values("gpt_neox", "loss", home) == pytest.approx(
        {("loss", 0, "", ""): float(loss)}, rel=1e-6
    )
    fused = model.gpt_neox.layers[0].attention.query_key_value.weight.detach()
    by_head = fused.unflatten(0, (2, 3, -1))  # heads, then q, k, v
    norms = values("gpt_neox", "weight_norm", home)
    assert norms["weight_norm", 1, "W_Q", ""] == pytest.approx(
        float(by_head[:, 0].norm()), rel=1e-12
    )
    assert norms["weight_norm", 1, "W_V.head2", ""] == pytest.approx(
        float(by_head[1, 2].norm()), rel=1e-12
    )


@pytest.mark.parametrize(("quantity", "message"), REFUSED.items(), ids=REFUSED)
def test_what_needs_a_task_or_a_training_is_refused(quantity, message, home):
    with pytest.raises(UserError, match=message):
        Sweep([("", replace(saved("gpt2", home), quantities=[quantity]))])


@pytest.mark.long
def test_the_landscape_is_of_one_batch(home, monkeypatch):
    config = replace(saved("gpt2", home), quantities=["stationarity"])
    (cell,) = Sweep([("", config)]).cells
    assert compute_cell(cell).rows
    one_by_one(monkeypatch)
    with pytest.raises(UserError, match=r"4 batches[\s\S]*a larger memory="):
        compute_cell(cell)
