"""Every kind of bad input: exit 2, nothing written, and a message that says what, got, allowed and remedy."""

import ast
from pathlib import Path

import pytest

from hessfig.errors import run_command
from tests.runs import COMMAND, TOY

ROOT = Path(__file__).parents[2] / "hessfig"
# A figure that is skipped; a worker's own words.
UNTOLD = ("cli/compare.py", "sweep/runner.py")
CHECKED = sorted(
    path for path in ROOT.rglob("*.py") if not path.as_posix().endswith(UNTOLD)
)

BAD = {
    ("run", "sweep=sigm"): [
        "no sweep 'sigm'",
        "sweep=sigm",
        "layernorm, ",
        "did you mean 'sigma'?",
    ],
    ("run", "modl=gpt2"): ["no setting 'modl'", "did you mean 'model'?"],
    ("run", "model.d_modl=4"): [
        "no setting 'model.d_modl'",
        "model.n_heads",
        "did you mean 'model.d_model'?",
    ],
    ("run", "+seeds=4"): ["no + is needed", "got:     +seeds=4", "remedy:  seeds=4"],
    ("run", "~grid.points"): [
        "grid.points cannot be taken away",
        "~grid.points",
        "another value",
    ],
    ("run", "hydra.run.dir=x"): ["no setting 'hydra.run.dir'", "hydra.run.dir=x"],
    ("run", "config_dir=x"): ["config_dir is not given so", "--config-dir FOLDER"],
    ("run", "seeds"): ["cannot read 'seeds'", "key=value"],
    ("run", "gpt2"): ["did you mean sweep=gpt2 or figure=gpt2 or model=gpt2?"],
    ("run", f"model.d_model={'[' * 900}{']' * 900}"): ["cannot read 'model.d_model=[["],
    ("run", f"seeds={'f(' * 900}{')' * 900}"): ["cannot read 'seeds=f(f("],
    ("run", f"seeds={'9' * 5000}"): ["cannot read 'seeds=999"],
    ("run", f"blocks=[{','.join(['W_V'] * 30000)}]"): ["30000 entries", "at most 2000"],
    ("run", "-m", "seeds=1,2"): ["no flag '-m'", "--config-dir, --cfg"],
    ("run", "seeds=[1"): ["cannot read 'seeds=[1'", "key=value", "quote"],
    ("run", "--sweep=sigma"): [
        "no flag '--sweep=sigma'",
        "settings have no dashes: sweep=sigma",
    ],
    ("slopes", "sweep=gate"): [
        "no sweep 'gate'",
        "--config-dir FOLDER, a folder of yours with sweep/gate.yaml",
    ],
    ("run", "--cfg", "hydra"): ["--cfg", "got:     hydra", "allowed: job"],
    ("run", "--config-dir"): ["no such folder", "sweep/"],
    ("run", "--config-dir", "nowhere"): [
        "no such folder",
        "nowhere",
        "mkdir -p nowhere/sweep",
    ],
    ("run", "blocks=3"): ["blocks is not a list of names", "got:     3", "for example"],
    ("run", "parts=[[H]]"): [
        "parts must be a list",
        "[['H']]",
        "did you mean parts=[H]?",
    ],
    ("run", "parts=[Ho,H]"): ["[Ho,H]", "did you mean parts=[H_o,H]?"],
    ("run", "model.mlp=ReLU"): ["must be one of", "did you mean model.mlp=relu?"],
    ("run", "model.scaled_weight=WQ"): ["WQ", "did you mean model.scaled_weight=W_Q?"],
    ("run", "device=gpu"): ["device: this is not a device", "gpu", "device=cpu"],
    ("run", "sweep.predictions={W_Q: {H: steep}}"): [
        "sweep.predictions: an exponent is a number, or zero",
        "steep",
    ],
    ("run", "grid.values=[[1]]"): [
        "grid.values must be a list of numbers",
        "[[1]]",
        "grid.values=null",
    ],
    ("run", "output_dir=${nope}"): [
        "output_dir: interpolation key 'nope'",
        "output_dir=${nope}",
        "plain value",
    ],
    ("run", "seeds=${seeds}"): [
        "seeds: recursive interpolation",
        "seeds=${seeds}",
        "plain value",
    ],
    ("run", "sweep.name=.."): [
        "sweep.name is the name of a folder",
        "'..'",
        "sweep.name=mine",
    ],
    ("run", "sweep.vary={model.n_hed: [1, 2]}"): [
        "no setting 'model.n_hed'",
        "did you mean 'model.n_heads'?",
    ],
    ("run", "sweep.vary={seeds: [1, 2]}"): [
        "seeds cannot be varied",
        "once for each value",
    ],
    ("run", "sweep.vary={model: {}}"): ["no setting 'model'", "model.n_heads"],
    ("run", "sweep.axis=model.d_model"): [
        "sweep.axis is not",
        "sigma, step",
        "sweep.vary={model.d_model: [VALUES]}",
    ],
    ("run", "sweep.vary=3"): ["sweep.vary must be", "{setting: values}"],
    ("run", "tolerance=0.2"): [
        "run does not read tolerance",
        "tolerance=0.2",
        "hessfig slopes, check",
    ],
    ("status", "dry_run=true"): ["status does not read dry_run", "hessfig run"],
    ("run", "grid.values=[0.1,-1]"): ["grid.values[1]", "-1.0", "finite numbers > 0"],
    ("run", "grid.values=[]"): [
        "grid.values is empty",
        "[]",
        "finite numbers > 0",
        "grid.values=[0.1,1]",
    ],
    ("run", "grid.values=0.1"): [
        "must be a list of numbers",
        "grid.values=[0.1], a list of one",
    ],
    ("run", "quantities=trace"): [
        "must be a list of names",
        "quantities=[trace], a list of one",
    ],
    ("run", "blocks=[W_q]"): ["no weight named 'W_q'", "did you mean 'W_Q'?"],
    ("run", "blocks=[each]"): ["each stands alone, not in a list", "blocks=each"],
    ("plot", "figure=3A"): ["no figure '3A'", "did you mean '3a'?"],
    ("plot", "figure=3a", "quantity=trace"): [
        "does not read quantity",
        "figure.options.quantity=NAME",
    ],
    ("run", "landscape.k=3"): [
        "no setting 'landscape.k'",
        "landscape.samples",
        "hessfig run --help",
    ],
    ("run", "seeds=0"): [
        "seeds is out of range",
        "got:     0",
        "whole number >= 1",
        "seeds=1",
    ],
    ("run", "seeds=1,2"): [
        "seeds has several values",
        "got:     seeds=1,2",
        "repeat the command",
    ],
    ("run", "estimator.num_probes=0"): [
        "estimator.num_probes",
        "got:     0",
        "whole number from 1",
    ],
    ("run", "estimator=xtrace", "estimator.num_probes=7"): [
        "half its products",
        "7",
        "even",
        "num_probes=8",
    ],
    ("run", "estimator=xtrace", "blocks=[[W_Q,W_V]]"): [
        "symmetric blocks",
        "W_Q, W_V",
        "estimator=hutchinson",
    ],
    ("run", "model.n_heads=3"): ["does not divide", "d_model=128, n_heads=3", "d_head"],
    ("run", "blocks=[W_QK]"): [
        "this model has no weight W_QK",
        "W_pos",
        "another model",
    ],
    ("run", "blocks=[[W_Q,W_QK]]"): [
        "[W_Q, W_QK] is not a pair of one model",
        "model.query_key=separate",
        "W_pos",
        "take another model: model.query_key=single",
    ],
    ("run", "estimator=dense"): [
        "estimator=dense",
        "got:     8.6 GB",
        "at most 8 GB",
        "estimator=auto",
    ],
    ("run", "sweep=entries", "model.d_model=64", "blocks=[W_V]"): [
        "hessian",
        "parameters would take",
        "got:     8",
        "estimator=auto",
    ],
    ("run", "model.sink=both", "model.sink_beta=2", "model.attention=linear"): [
        "no softmax",
        "model.sink=embedding",
    ],
    ("run", "model.scaled_weight=mlp", "model.weight_scale=2", "model.mlp=none"): [
        "draws no weight mlp",
        "W_Q, W_K, W_V, W_O",
    ],
    ("run", "model=mlp", "model.mlp=none", "blocks=[W_in]"): [
        "nothing but an MLP",
        "model.mlp=relu",
    ],
    ("run", "model=mlp", "estimator=exact", "blocks=[W_in]"): [
        "no exact H_o",
        "model.kind=mlp",
        "estimator=auto",
    ],
    ("run", "model=vit"): [
        "do not fit",
        "task.data=addition, model.kind=vit",
        "remedy:  task=digits",
    ],
    ("run", "task=text", "task.path=nowhere.txt"): [
        "task.path: there is no such file",
        "UTF-8",
    ],
    ("run", "task=text", "task.length=1"): [
        "no character of a window",
        "task.length=64",
    ],
    ("run", "model=cnn", "task=digits", "model.norm=pre"): [
        "GroupNorm behind every convolution",
        "model.norm=post",
    ],
    ("run", "task.path=own.npz"): [
        "task.path is read with task.data=digits|tokens",
        "leave task.path out",
    ],
    ("run", "model=vit", "task=digits", "model.patch=3"): [
        "side of 8 pixels",
        "1, 2, 4, 8",
    ],
    ("run", "model=vit", "task=digits", "task.batch_size=1438"): [
        "training pictures",
        "1 to 1437",
    ],
    ("run", "model=huggingface"): [
        "do not fit",
        "tokens with huggingface",
        "remedy:  task=tokens",
    ],
    ("run", "sweep=gpt2", "model.path=nowhere"): [
        "no such folder",
        "config.json",
        "save_pretrained(DIR)",
    ],
    ("run", "sweep=gpt2", "model.architecture=gtp2"): [
        "is not known here",
        "did you mean 'gpt2'?",
    ],
    ("run", "sweep=gpt2", "memory=10MB"): [
        "too little for one sequence",
        "at least",
        "memory=0.",
    ],
    ("run", "sweep=gpt2", "task.length=32", "model.options={n_positions: 16}"): [
        "context",
        "at most 16",
    ],
    ("run", "sweep=gpt2", "model.options={attn_implementation: sdpa}"): [
        "no double backward",
        "eager",
    ],
    ("run", "sweep=gpt2", "estimator=exact"): [
        "only built-in networks",
        "estimator=auto",
    ],
    ("run", "sweep=gpt2", "state=trained"): [
        "no task to train on",
        "task.data=addition",
    ],
    ("run", "model=transformer_lens", "task=tokens"): [
        "model.path is missing",
        "config.json",
        "model.path=DIR",
    ],
    ("run", "shard=9/8"): [
        "shard: there is no such share",
        "got:     9/8",
        "1 <= K <= N",
        "shard=8/8",
    ],
    ("run", "shard=auto"): [
        "Slurm's variables do not determine the share",
        "shard=K/N",
    ],
    ("run", "shard=1/2", "launcher=slurm"): [
        "are shards themselves",
        "leave shard out",
    ],
    ("run", "launcher=slurm", "launcher.time=1:30"): [
        "launcher.time",
        "got:     1:30",
        "HH:MM:SS",
    ],
    ("run", "launcher=slurm", "launcher.partition='a b'"): [
        "launcher.partition",
        "a b",
        "without blanks",
    ],
    ("plot", "figure=3a", r'figure.title="$\frac{1}{0$"'): [
        "figure.title: this formula cannot be read at character 6"
    ],
    ("plot", "figure=bounds", r'figure.xlabel="$\input{x}$"'): [
        "figure.xlabel: this formula cannot be read"
    ],
    ("plot", "figure=3a", 'figure.ylabel="a\x1b[31m"'): [
        "figure.ylabel: a control character at character 2",
        "a?[31m",
    ],
    ("plot", "figure=3a", "workers=2"): [
        "plot does not read workers",
        "workers=2",
        "for hessfig run, slice, status",
    ],
    ("plot", "figure=3a", "sweep.name=x"): [
        "plot does not read sweep.name",
        "figure.sweep=NAME",
    ],
    ("plot", "figure=scalar", "seeds=3"): [
        "the study scalar does not read seeds",
        "seeds=3",
        "output_dir",
    ],
    ("plot", "figure=3a", "figure.layout=study", "figure.name=x"): [
        "no study 'x'",
        "scalar, bounds",
    ],
    ("plot", "figure=3a", "figure.sweep="): [
        "figure.sweep: there is no sweep ''",
        "layernorm",
    ],
    ("plot", "3a"): ["cannot read '3a'", "figure=3a"],
    ("plot",): ["no figure chosen", "figure=NAME", "plot --help"],
    ("slopes", "sweep=sigma"): [
        "sigma/table.csv is missing",
        "hessfig run sweep=sigma",
    ],
    ("verify", "statement=thm3"): ["thm3", "thm31", "did you mean"],
    ("rum",): ["no verb 'rum'", "run, plot", "did you mean 'run'?"],
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
@pytest.mark.long
def test_bad_input_is_explained_and_nothing_is_written(cli, arguments, tmp_path):
    answer = cli(*arguments)
    assert answer.code == 2, answer.err
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err
    for line in ("\n  got: ", "\n  allowed: ", "\n  remedy: "):
        assert line in answer.err
    for words in BAD[arguments]:
        assert words in answer.err, answer.err
    assert list(tmp_path.rglob("*")) == []


def test_every_refusal_says_got_allowed_and_remedy():
    untold = [
        (path.relative_to(ROOT).as_posix(), node.lineno)
        for path in CHECKED
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "UserError"
        if not {"got", "allowed", "remedy"} <= {word.arg for word in node.keywords}
    ]
    assert not untold


def test_a_gpu_that_is_not_there(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = cli("run", "device=cuda")
    assert (answer.code, list(tmp_path.rglob("*"))) == (2, [])
    for words in ("no usable CUDA GPU", "got:     cuda", "allowed: cpu", "device=cpu"):
        assert words in answer.err


def test_a_file_as_output_folder(cli, tmp_path):
    (tmp_path / "results").write_text("mine")
    answer = cli("run", "output_dir=results")
    assert answer.code == 2
    for words in ("a file is in the way", "results/sigma", "output_dir=FOLDER"):
        assert words in answer.err
    assert (tmp_path / "results").read_text() == "mine"


@pytest.mark.parametrize(
    "verb", [("slopes",), ("check",), ("plot", "figure=3a")], ids=" ".join
)
def test_a_table_with_missing_columns(cli, tmp_path, verb):
    (tmp_path / "outputs/sigma").mkdir(parents=True)
    (tmp_path / "outputs/sigma/table.csv").write_text(
        "sweep,layer,row,col,part,sigma\nsigma,1,W_V,W_V,H,0.1\n"
    )
    answer = cli(*verb)
    assert answer.code == 2
    for words in ("table.csv", "value", "hessfig run sweep=sigma"):
        assert words in answer.err
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("text", ["", "not,a\ntable"])
def test_a_table_that_is_none(cli, tmp_path, text):
    (tmp_path / "outputs/sigma").mkdir(parents=True)
    (tmp_path / "outputs/sigma/table.csv").write_text(text)
    answer = cli("slopes")
    assert answer.code == 2
    assert "table.csv" in answer.err


def test_a_table_from_another_config(cli, undisturbed):
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


def _files_in(folder):
    return {
        path.name: path.stat().st_mtime_ns
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize("folder", ["Übung", "two words", "it's", 'a "b"'])
def test_the_remedy_can_be_pasted(cli, folder):
    """Folders with blanks, quotes and umlauts: the command that is shown composes to that very folder."""
    import shlex

    from hessfig.config.compose.job import compose

    remedy = run_command(Path(folder) / "sigma")
    words = shlex.split(remedy)
    assert words[:3] == ["hessfig", "run", "sweep=sigma"]
    assert compose(words[2:]).config.output_dir == folder


@pytest.mark.parametrize("verb", ["slopes", "check"])
@pytest.mark.long
def test_a_terminal_of_ascii_is_served(verb, undisturbed):
    import os
    import subprocess

    found = subprocess.run(
        [COMMAND, verb, *TOY, f"output_dir={undisturbed}/outputs"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert found.returncode in (0, 1)
    assert found.stdout
    assert b"Traceback" not in found.stderr
