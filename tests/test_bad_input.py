"""Every kind of bad input: exit 2, nothing written, and a message that says what, got, allowed and remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Answer

Cli = Callable[..., Answer]

BAD = {
    ("run", "sweep=sigm"): ["no sweep 'sigm'", "sweep=sigm", "layernorm, ", "did you mean 'sigma'?"],
    ("run", "modl=gpt2"): ["no setting 'modl'", "did you mean 'model'?"],
    ("run", "model.d_modl=4"): [
        "no setting 'model.d_modl'",
        "model.n_heads",
        "did you mean 'model.d_model'?",
    ],
    ("run", "d_model=4"): ["no setting 'd_model'", "did you mean 'model.d_model'?"],
    ("run", "+seeeds=4"): ["no setting 'seeeds'", "did you mean 'seeds'?"],
    ("run", "seeds"): ["cannot read 'seeds'", "key=value"],
    ("run", "estimator=hutchinsen"): ["no estimator 'hutchinsen'", "xtrace", "did you mean 'hutchinson'?"],
    ("run", "grid.values=[0.1,-1]"): ["grid.values", "-1.0", "sigma > 0"],
    ("run", "grid.low=0"): ["grid.low", "got:     0", "sigma > 0"],
    ("run", "grid.values=[nan]"): ["grid.values", "nan", "sigma > 0"],
    ("run", "grid.values=[]"): ["grid.values is empty", "[]", "at least one sigma"],
    ("run", "seeds=0"): ["seeds", "got:     0", "whole number >= 1", "seeds=1"],
    ("run", "seeds=1.5"): ["seeds", "1.5", "Integer"],
    ("run", "-m", "seeds=1,x"): ["seeds", "'x'", "Integer"],
    ("run", "-m", "sweep=sigma,sigm"): ["no sweep 'sigm'", "did you mean 'sigma'?"],
    ("run", "estimator.num_probes=0"): ["estimator.num_probes", "got:     0", "whole number >= 1"],
    ("run", "estimator=xtrace", "estimator.num_probes=7"): ["half its products", "7", "even", "num_probes=8"],
    ("run", "estimator=xtrace", "blocks=[[W_Q,W_V]]"): [
        "symmetric blocks",
        "W_Q, W_V",
        "estimator=hutchinson",
    ],
    ("run", "model.n_heads=3"): ["does not divide", "d_model=128, n_heads=3", "d_head"],
    ("run", "model.n_layers=0"): ["model.n_layers", "got:     0", "whole number >= 1"],
    ("run", "blocks=[W_X]"): ["no weight named 'W_X'", "W_pos", "did you mean"],
    ("run", "blocks=[W_QK]"): ["this model has no weight W_QK", "W_pos", "another model"],
    ("run", "blocks=[[W_Q,W_QK]]"): [
        "[W_Q, W_QK] is not a pair of one model",
        "model.query_key=separate",
        "W_pos",
        "take another model: model.query_key=single",
    ],
    ("run", "model.query_key=single", "blocks=[W_K]"): [
        "no weight W_K",
        "got:     W_K",
        "model.query_key=separate",
    ],
    ("run", "sweep=softmax", "blocks=[W_in]"): ["no weight W_in (model.mlp=none)", "W_O", "model.mlp=relu"],
    ("run", "sweep=mlp", "blocks=[W_V]"): [
        "no weight W_V (model.kind=linear_mlp)",
        "pairs of W",
        "model=gpt2",
    ],
    ("run", "estimator=dense"): ["estimator=dense", "got:     8.6 GB", "at most 8 GB", "estimator=auto"],
    ("run", "sweep=entries", "model.d_model=64", "blocks=[W_V]"): [
        "sweep.keep_dense",
        "51840 parameters",
        "got:     86.0 GB",
        "estimator=auto",
    ],
    ("run", "dtype=float16"): ["dtype", "float16", "float64, float32"],
    ("plot", "figure=3z"): ["no figure '3z'", "3a", "did you mean"],
    ("plot",): ["no figure chosen", "figure=NAME", "plot --help"],
    ("plot", "figure=3a"): ["sigma/table.csv is missing", "hessfig run sweep=sigma"],
    ("plot", "figure=6"): ["depth/table.csv is missing", "hessfig run sweep=depth"],
    ("slopes", "sweep=sigma"): ["sigma/table.csv is missing", "hessfig run sweep=sigma"],
    ("compare", "sweep=sigma"): ["reference is missing", "reference=FILE.csv or reference=FOLDER"],
    ("status", "sweep=sigm"): ["no sweep 'sigm'", "did you mean 'sigma'?"],
    ("verify", "statement=thm3"): ["thm3", "thm31", "did you mean"],
    ("rum",): ["no verb 'rum'", "run, plot", "did you mean 'run'?"],
    ("completion", "fish"): ["completion", "fish", "bash"],
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_explained_and_nothing_is_written(
    cli: Cli, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    answer = cli(*arguments)
    assert answer.code == 2, answer.err
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err
    for words in BAD[arguments]:
        assert words in answer.err, answer.err
    assert list(tmp_path.rglob("*")) == []


def test_a_gpu_that_is_not_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = cli("run", "device=cuda")
    assert (answer.code, list(tmp_path.rglob("*"))) == (2, [])
    for words in ("no usable CUDA GPU", "got:     cuda", "allowed: cpu", "device=cpu"):
        assert words in answer.err


def test_a_file_as_output_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("mine")
    answer = cli("run", "output_dir=results")
    assert answer.code == 2
    for words in ("a file is in the way", "results/sigma", "output_dir=FOLDER"):
        assert words in answer.err
    assert (tmp_path / "results").read_text() == "mine"


@pytest.mark.parametrize("verb", [("slopes",), ("check",), ("plot", "figure=3a")], ids=" ".join)
def test_a_table_with_missing_columns(cli: Cli, tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "outputs/sigma").mkdir(parents=True)
    (tmp_path / "outputs/sigma/table.csv").write_text(
        "sweep,layer,row,col,part,sigma\nsigma,1,W_V,W_V,H,0.1\n"
    )
    answer = cli(*verb)
    assert answer.code == 2
    for words in ("table.csv", "frob", "hessfig run sweep=sigma"):
        assert words in answer.err
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("text", ["", "not,a\ntable"])
def test_a_table_that_is_none(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "outputs/sigma").mkdir(parents=True)
    (tmp_path / "outputs/sigma/table.csv").write_text(text)
    answer = cli("slopes")
    assert answer.code == 2
    assert "table.csv" in answer.err


def test_a_table_from_another_config(cli: Cli, undisturbed: Path) -> None:
    before = _files_in(undisturbed / "outputs/sigma")
    answer = cli("slopes", f"output_dir={undisturbed}/outputs", "model.d_model=128")
    assert answer.code == 2
    for words in (
        "is from another config",
        "model.d_model was 32",
        "model.d_model=128",
        "hessfig run sweep=sigma",
    ):
        assert words in answer.err
    assert _files_in(undisturbed / "outputs/sigma") == before


def test_a_reference_that_does_not_exist(cli: Cli, undisturbed: Path) -> None:
    answer = cli("compare", f"output_dir={undisturbed}/outputs", "reference=published.csv")
    assert answer.code == 2
    assert "published.csv" in answer.err


def _files_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file()}
