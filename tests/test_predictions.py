"""hessfig predict: what it prints and returns, without torch; the page of components; and what its sweeps vary."""

import csv
import io
import subprocess
import sys

import pytest
import torch

import hessfig
from hessfig.api.predicted import COLUMNS_PREDICTED as COLUMNS
from hessfig.api.predicted import predicted_rows as rows
from hessfig.cli.main import main
from hessfig.config.compose.job import compose
from hessfig.config.enums import Data, DType, PowersOf
from hessfig.config.science import TaskConfig
from hessfig.errors import UserError
from hessfig.models.blocks import TIED
from hessfig.predictions import network_series
from hessfig.tasks.batch import draw_batch
from hessfig.terms import Matrix


def predicted(capsys, *words):
    """Return the rows of hessfig predict format=csv."""
    with pytest.raises(SystemExit) as done:
        main(["predict", *words, "format=csv"])
    assert done.value.code == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize(
    ("words", "exponent"),
    [
        ((), 5),
        (("model.attention=linear",), 6),
        (("model.attention=sigmoid",), 6),
        (("model.attention=sigmoid", "model.attention_bias=log_length"), 5),
        (("model.attention=sparsemax",), 6),
        (("model.attention=entmax15",), 5),
        (("model.attention=kernel",), 4),
        (("model.attention=differential", "model.differential_norm=false"), 5),
        (("model.attention=off_by_one",), 5),
        (("model.scores=cosine",), 1),
        (("model.scores=softcap",), 5),
        (("model.positions=rope",), 5),
        (("model.positions=alibi",), 5),
        (("model.mlp=swiglu",), 5),
        (("model.tied=true",), 6),
        (("model.n_heads=4", "model.n_kv_heads=2"), 5),
    ],
)
@pytest.mark.long
def test_the_query_block_of_every_component(words, exponent, capsys):
    small = predicted(capsys, *words, "blocks=[W_Q]", "parts=[H]")[0]
    assert tuple(small) == COLUMNS
    assert (small["regime"], small["exponent"], small["zero"]) == (
        "sigma -> 0",
        str(exponent),
        "false",
    )
    assert "[W_Q]" in small["reason"]
    assert "~ sigma^" in small["reason"]


def test_zeros_and_unknowns_have_reasons(capsys):
    found = predicted(capsys, "blocks=[W_V]", "parts=[H_f,H]")
    assert [row["zero"] for row in found] == ["true", "false", "false"]
    assert "affine" in found[0]["reason"]
    assert "softmax saturates" in found[2]["reason"]
    assert found[2]["exponent"] == ""
    assert found[0]["regime"] == "every sigma"


def test_powers_of_a_weight_name_the_weight(capsys):
    words = (
        "model=self_attention",
        "task=gaussian",
        "blocks=[W_Q]",
        "parts=[H_o]",
        "powers_of=W_K",
    )
    row = predicted(capsys, *words)[0]
    assert (row["regime"], row["exponent"]) == ("W_K -> 0", "2")
    assert "sigma" not in row["reason"]
    assert {one.value for one in PowersOf} - {"sigma", network_series.BRANCH} <= set(
        Matrix
    )
    assert network_series.TIED == TIED


def test_predict_needs_no_torch_and_returns_a_frame():
    program = (
        "import sys, hessfig; frame = hessfig.predict('model.norm=pre', 'parts=[H]');"
        "assert list(frame['exponent'][:3]) == [2, 0, -2], frame; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(UserError, match="does not read workers"):
        hessfig.predict("workers=2")


@pytest.mark.long
def test_every_network_of_the_sweep_of_components_is_predicted():
    found = list(rows(compose(["sweep=components"])))
    small = [
        row for row in found if row["regime"] in ("sqrt(eps) < sigma < 1", "sigma -> 0")
    ]
    assert len({row["variant"] for row in small}) == 30
    assert all(row["exponent"] or row["zero"] == "true" for row in small)


def test_variants_change_what_they_name_and_nothing_else():
    job = compose(
        [
            "sweep.variants=[{},{model.scores: cosine},{model.mlp: gelu, model.norm: pre}]"
        ]
    )
    assert [name for name, _ in job.variants] == [
        "",
        "model.scores=cosine",
        "model.mlp=gelu,model.norm=pre",
    ]
    scores = [
        (config.model.scores.value, config.model.mlp.value)
        for _, config in job.variants
    ]
    assert scores == [("plain", "relu"), ("cosine", "relu"), ("plain", "gelu")]
    with pytest.raises(UserError, match=r"model\.scores is given one value as well"):
        compose(["sweep.variants=[{},{model.scores: cosine}]", "model.scores=softcap"])
    with pytest.raises(UserError, match="a variant is what it changes"):
        compose(["sweep.variants=[cosine]"])
    with pytest.raises(UserError, match="there is no setting"):
        compose(["sweep.variants=[{model.score: cosine}]"])


def test_tokens_of_a_sequence_are_correlated_as_asked():
    task = TaskConfig(data=Data.gaussian, batch_size=400, correlation=0.6)
    inputs = draw_batch(task, width=16, dtype=DType.float64).inputs
    assert float((inputs[:, 0] * inputs[:, 1]).mean()) == pytest.approx(0.6, abs=0.05)
    assert float(inputs.var()) == pytest.approx(1.0, abs=0.05)
    plain = draw_batch(
        TaskConfig(data=Data.gaussian, batch_size=400), width=16, dtype=DType.float64
    )
    same = draw_batch(task, width=16, dtype=DType.float64)
    assert torch.equal(plain.targets, same.targets)
