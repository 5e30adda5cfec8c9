"""hessfig export: plain files of one network, and what docs/conventions.md says of them, tried without the package."""

import csv
import io
import json
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hessfig import rng
from hessfig.config.compose.job import compose
from hessfig.curvature.problem import rademacher
from hessfig.models.protocol import kind
from hessfig.states.exported import plain_files
from hessfig.states.initialised import build_network
from hessfig.states.point import drawn
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from hessfig.tasks.examples import training_batch, unseen_sums
from tests.daily import thinned
from tests.pages import BLOCK, ROOT, text_of
from tests.runs import here, rows

Told = dict[str, subprocess.CompletedProcess[str]]
SCRIPT = ROOT / "examples/ten_numbers.py"
# An interpreter in which hessfig cannot be imported runs files as python does, each in
# a process forked from it: what they import takes longest, and is imported once.
ALONE = """
import json, os, runpy, sys
sys.modules["hessfig"] = None
import torch, safetensors.torch

for place, words in json.loads(sys.stdin.read()).items():
    if not (child := os.fork()):
        for number, name in enumerate(("out", "err"), start=1):
            os.dup2(os.open(f"{place}.{name}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv = words
        runpy.run_path(words[0], {}, "__main__")
        sys.exit()
    open(f"{place}.code", "w").write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""
SMALL = (
    "sweep=sigma",
    "model.d_model=4",
    "model.d_mlp=6",
    "task.digits=1",
    "task.batch_size=3",
    "grid.values=[0.3]",
)
KINDS = 13  # numbers that the example recomputes


def alone(folder, calls):
    """Run scripts with their arguments in an interpreter without hessfig; return what each printed."""
    words = {
        str(folder / name): [str(word) for word in call] for name, call in calls.items()
    }
    program = [sys.executable, "-I", "-c", ALONE]
    subprocess.run(program, input=json.dumps(words), text=True, check=True, timeout=200)
    ended = {
        place: [Path(f"{place}.{kind}").read_text() for kind in ("code", "out", "err")]
        for place in words
    }
    return {
        name: subprocess.CompletedProcess(call, int(code), out, err)
        for (name, call), (code, out, err) in zip(
            calls.items(), ended.values(), strict=True
        )
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the example's table and the export of its network."""
    folder = tmp_path_factory.mktemp("stranger")
    done = here(
        "run",
        "--config-dir",
        str(ROOT / "examples"),
        "sweep=ten_numbers",
        "workers=1",
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    done = here("export", "outputs/ten_numbers", "into=network", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "written: network (6 files" in done.stdout
    return folder


@pytest.fixture(scope="module")
def told(made, tmp_path_factory):
    """What the example says of the export, and of others: a table, a weight and a setting that are off."""
    folder = tmp_path_factory.mktemp("told")
    network = made / "network"
    table = made / "outputs/ten_numbers/table.csv"
    (folder / "imports.py").write_text("import hessfig\n")
    with table.open() as handle:
        content = list(csv.DictReader(handle))
    with (folder / "table.csv").open("w", newline="") as handle:
        writer = csv.DictWriter(handle, content[0])
        writer.writeheader()
        writer.writerows(
            {**row, "value": repr(float(row["value"]) * (1 + 1e-7))} for row in content
        )
    for name in ("weights", "sigmoid"):
        shutil.copytree(network, folder / name)
    weights = load_file(folder / "weights/weights.safetensors")
    weights["layers.0.attn.q.weight"][0, 0] += 1e-3
    save_file(weights, folder / "weights/weights.safetensors")
    about = json.loads((folder / "sigmoid/network.json").read_text())
    about["settings"]["model"]["attention"] = "sigmoid"
    (folder / "sigmoid/network.json").write_text(json.dumps(about))
    calls = {
        "as exported": (SCRIPT, network, table),
        "imports": (folder / "imports.py",),
        "another table": (SCRIPT, network, folder / "table.csv"),
        "another weight": (SCRIPT, folder / "weights", table),
        "another setting": (SCRIPT, folder / "sigmoid", table),
    }
    return alone(folder, calls)


@pytest.mark.long
def test_a_stranger_recomputes_numbers_of_a_table(told):
    found = told["as exported"]
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()[1:-1]
    assert len(lines) == KINDS
    assert all(float(line.split()[-1]) <= 1e-8 for line in lines)
    # Three of the numbers are Frobenius norms.
    assert len({line.split()[0] for line in lines}) == 11


@pytest.mark.long
def test_the_example_has_no_hessfig_and_finds_what_is_off(told):
    assert "ModuleNotFoundError: import of hessfig halted" in told["imports"].stderr
    off = told["another table"]
    assert off.returncode == 1, off.stdout + off.stderr
    assert f"{KINDS} numbers differ" in off.stdout, off.stdout + off.stderr
    assert told["another weight"].returncode == 1
    assert "differ" in told["another weight"].stdout


@pytest.mark.long
def test_the_example_says_what_it_does_not_know(told):
    found = told["another setting"]
    assert found.returncode == 1
    assert "does not know model.attention=sigmoid" in found.stderr


@cache
def documented():
    """The names that the Python block of docs/conventions.md defines."""
    blocks = BLOCK.finditer(text_of("docs/conventions.md"))
    (code,) = (block["text"] for block in blocks if block["language"] == "python")
    names = {}
    exec(code, names)
    return names


@pytest.mark.parametrize(
    "names",
    [
        ("weight", "layers.0.attn.q.weight"),
        ("probes", 0.3, 1, "W_Q"),
        ("task", 3, None),
    ],
)
def test_the_page_says_how_seeds_give_streams(names):
    both = [
        torch.randn(5, generator=made(1234, *names))
        for made in (documented()["stream"], rng.stream)
    ]
    assert torch.equal(*both)


def test_an_untrained_network_is_drawn_as_the_page_says(cli, tmp_path):
    answer = cli("export", *SMALL, "seeds=3", "seed=1235", "into=mine")
    assert answer.code == 0, answer.err
    assert "exported: sigma, sigma=0.3, seed=1235" in answer.out
    weights = load_file(tmp_path / "mine/weights.safetensors")
    assert {name.rpartition(".")[0] for name in weights} >= {
        "tok_embed",
        "pos",
        "head",
        "layers.0.mlp.fc_out",
    }
    for name, weight in weights.items():
        if name in ("tok_embed.weight", "pos.weight"):
            expected = documented()["embedding"](1235, name, tuple(weight.shape), 0.3)
        elif weight.ndim == 2:
            expected = documented()["weight"](
                1235, name, tuple(weight.shape), 0.8 / 4**0.5
            )
        else:
            expected = torch.zeros_like(weight)
        torch.testing.assert_close(weight, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize(("seed", "changed"), [(0, ""), (1, ""), (10, "y"), (14, "x")])
def test_the_batch_is_drawn_as_the_page_says(seed, changed):
    """Plain batches, and those that are enriched with carries, in y or in x."""
    digits = 2
    base = 10
    size = 5
    words = [
        "sweep=sigma",
        "model.d_model=4",
        f"task.digits={digits}",
        f"task.batch_size={size}",
        f"task.seed={seed}",
    ]
    files = plain_files(compose(words).config, sigma=0.3, seed=1234, step=None, said={})
    held = np.load(io.BytesIO(files["batch.npz"]))
    generator = documented()["stream"](seed, "task", "addition")
    x, y = (
        torch.randint(0, base, (size, digits), generator=generator) for _ in range(2)
    )
    enriched = ""
    if int(torch.randint(0, 5, (), generator=generator)) == 0:
        places = torch.randperm(size * digits, generator=generator)[
            : size * digits // 5
        ]
        enriched = "xy"[int(torch.randint(0, 2, (), generator=generator))]
        new, other = (x, y) if enriched == "x" else (y, x)
        new.view(-1)[places] = base - 1 - other.view(-1)[places]
    assert enriched == changed
    for row, a, b in zip(
        held["inputs_0"].tolist(), x.tolist(), y.tolist(), strict=True
    ):
        total = int("".join(map(str, a))) + int("".join(map(str, b)))
        assert row == [*a, base, *b, base + 1, *map(int, f"{total:03d}")]
    assert held["scored_0"].tolist() == [2 * digits + 1, 3 * digits + 2]
    np.testing.assert_array_equal(
        held["targets_0"], held["inputs_0"][:, 2 * digits + 2 :]
    )


def test_other_batches_and_probes_are_drawn_as_the_page_says():
    digits = 3
    size = 10
    config = compose(
        ["sweep=sigma", f"task.digits={digits}", f"training.batch_size={size}"]
    ).config
    generator = documented()["stream"](7, "training", "addition", 4)
    x, y = torch.randint(0, 10, (2, size, digits), generator=generator)
    count = round(config.training.cascades * size)
    length = torch.randint(1, digits + 1, (count, 1), generator=generator)
    start = (
        torch.rand((count, 1), generator=generator) * (digits - length + 1)
    ).floor()
    places = torch.arange(digits)
    run = (places >= start) & (places < start + length)
    y[:count][run] = 9 - x[:count][run]
    found = training_batch(config, seed=7, step=4).inputs
    assert torch.equal(found[:, :digits], x)
    assert torch.equal(found[:, digits + 1 : 2 * digits + 1], y)
    x, y = torch.randint(
        0, 10, (2, 5, digits), generator=documented()["stream"](0, "unseen", "addition")
    )
    found = unseen_sums(config.task, 5)
    assert torch.equal(found[:, :digits], x)
    assert torch.equal(found[:, digits + 1 : 2 * digits + 1], y)
    named = {
        "frobenius": ("probes", 0.3, 2, "W_V"),
        "trace": ("probes", "trace", 0.3, 2, "W_V", "step", 20),
    }
    for quantity, names in named.items():
        step = 20 if "step" in names else None
        theirs = rng.probe_stream(7, quantity, 0.3, 2, "W_V", step=step)
        signs = (
            2 * torch.randint(0, 2, (4, 6), generator=documented()["stream"](7, *names))
            - 1
        )
        assert torch.equal(
            rademacher(6, 4, generator=theirs, dtype=torch.float64).T, signs.double()
        )


@pytest.mark.parametrize(
    ("words", "deviation"),
    thinned(
        [
            (
                ["model.initialisation=gpt2", "model.n_layers=2"],
                {"attn.o": 0.01, "mlp.fc_out": 0.01, "attn.q": 0.02},
            ),
            (
                ["model.sigma_scales=tokens"],
                {"attn.q": 0.8 / 4**0.5, "pos": 0.8 / 4**0.5},
            ),
            (
                ["model=vit", "task=digits"],
                {"attn.q": 0.8 / 4**0.5, "patch": 0.3, "pos": 0.3},
            ),
            (
                ["model=mlp", "blocks=each"],
                {"layers.0": 0.8 / 20**0.5, "head": 0.8 / 6**0.5},
            ),
            (
                ["model=cnn", "task=digits", "blocks=each"],
                {"layers.1.conv": (2 / 54) ** 0.5},
            ),
        ],
        2,
    ),
)
def test_weights_have_the_deviations_that_the_page_says(words, deviation):
    config = compose(
        [
            "sweep=sigma",
            "sweep.vary={}",
            "model.d_model=4",
            "model.d_mlp=6",
            "task.digits=1",
            *words,
        ]
    ).config
    network = build_network(config, sigma=0.3, seed=3)
    place = documented()
    for end, expected in deviation.items():
        names = [
            name
            for name, _ in network.named_parameters()
            if name.endswith(f"{end}.weight")
        ]
        assert names
        for name in names:
            held = network.get_parameter(name)
            scaled = (
                name in ("patch.weight", "pos.weight")
                and config.model.sigma_scales == "both"
            )
            own = place["embedding" if scaled else "weight"](
                3, name, tuple(held.shape), expected
            )
            torch.testing.assert_close(held.detach(), own, rtol=1e-12, atol=0)


def test_an_export_can_be_loaded_again(tmp_path):
    config = compose([*SMALL, "model.norm=pre"]).config
    (tmp_path / "w.safetensors").write_bytes(
        plain_files(config, sigma=0.3, seed=9, step=None, said={})[
            "weights.safetensors"
        ]
    )
    again = compose(
        [
            *SMALL,
            "model.norm=pre",
            "state=loaded",
            f"state.path={tmp_path}/w.safetensors",
        ]
    ).config
    read = drawn(again, sigma=None, seed=0)
    made = drawn(config, sigma=0.3, seed=9)
    assert all(map(torch.equal, read.network.parameters(), made.network.parameters()))


def test_names_stand_in_the_order_of_the_parameters():
    """The one order of vectors: of every kind of network of the package, with all that its layers may have."""
    for words in (
        [
            "model=gpt2",
            "model.norm=sandwich",
            "model.scores=qk_norm",
            "model.gate=output",
            "model.mlp=swiglu",
        ],
        ["model=vit", "task=digits", "model.norm=pre"],
        ["model=mlp", "task.digits=1"],
        ["model=cnn", "task=digits"],
    ):
        config = compose(["sweep=sigma", "sweep.vary={}", *words]).config
        network = build_network(config, sigma=1.0, seed=0)
        named = [
            weight.parameter
            for weight in kind(config.model.kind).layout(config).weights
        ]
        assert named == [name for name, _ in network.named_parameters()]


def _example():
    spec = spec_from_file_location("ten_numbers", SCRIPT)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("norm", thinned(["none", "pre", "post"], 2))
@pytest.mark.parametrize("mlp", thinned(["relu", "gelu", "linear", "none"], 2))
def test_the_example_writes_out_the_package_s_transformer(norm, mlp, tmp_path):
    sizes = [
        "model.n_heads=2",
        "model.d_head=3",
        "model.n_layers=2",
        "model.temperature=1.7",
    ]
    network, (cell,) = _exported(
        [f"model.norm={norm}", f"model.mlp={mlp}", *sizes, "quantities=[loss]"],
        tmp_path,
    )
    found = float(network.loss(network.weights))
    assert found == pytest.approx(compute_cell(cell).rows[0]["value"], rel=1e-13)


def test_vectors_have_the_order_that_the_page_says(tmp_path):
    """The kept eigenvector of a group is one of the dense block in that order, and of no other."""
    words = [
        "state=trained",
        "state.step=0",
        "model.n_layers=2",
        "blocks=[attention]",
        "parts=[H]",
    ]
    network, (cell,) = _exported([*words, "quantities=[largest_eigenvalue]"], tmp_path)
    found = compute_cell(cell).arrays
    entry = json.loads(str(found["entries"]))[1]
    vector = torch.from_numpy(found["vectors_1"])[:, 0]
    value = float(found["values_1"][0])
    blocks = _example().Blocks(network, network.side(entry["layer"], "attention"))
    torch.testing.assert_close(
        blocks.full @ vector, value * vector, rtol=0, atol=1e-4 * value
    )
    turned = torch.cat([one.movedim(0, -1).flatten() for one in _cut(blocks, vector)])
    assert float((blocks.full @ turned - value * turned).norm()) > 1e-2 * value


def test_the_whole_hessian_has_the_orientation_that_the_page_says(tmp_path):
    network, (cell,) = _exported(["quantities=[hessian]"], tmp_path)
    found = compute_cell(cell).arrays
    attn = "layers.0.attn"
    linear = [f"{attn}.{one}" for one in "qkvo"] + [
        "layers.0.mlp.fc_in",
        "layers.0.mlp.fc_out",
        "head",
    ]
    paths = ["tok_embed.weight", "pos.weight", *(f"{one}.weight" for one in linear[:4])]
    paths += [f"{one}.{what}" for one in linear[4:] for what in ("weight", "bias")]
    blocks = _example().Blocks(network, paths)
    places = _cut(blocks, torch.arange(len(blocks.start)))
    tables = ("tok_embed.weight", "pos.weight")
    order = torch.cat(
        [
            (p if name in tables else p.movedim(0, -1)).flatten()
            for name, p in zip(paths, places, strict=True)
        ]
    )
    expected = blocks.full[order][:, order]
    assert found["sizes"] == [len(one.flatten()) for one in places]
    torch.testing.assert_close(
        torch.from_numpy(found["hessian"]).double(), expected, rtol=1e-5, atol=1e-7
    )


def _exported(words, folder):
    """Return the network of an export as the example reads it, and the cells of the same settings."""
    sweep = Sweep(compose([*SMALL, "seeds=1", f"output_dir={folder}", *words]).variants)
    cells = sweep.cells
    at = {"sigma": cells[0].sigma, "seed": cells[0].seed, "step": cells[0].step}
    said = {"variant": "", "num_layers": cells[0].num_layers}
    (folder / "network").mkdir()
    for name, content in plain_files(sweep.config, **at, said=said).items():
        (folder / "network" / name).write_bytes(content)
    return _example().Network(folder / "network"), cells


def _cut(blocks, vector):
    shapes = [blocks.network.weights[name].shape for name in blocks.parameters]
    pieces = vector.split([shape.numel() for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def test_an_export_is_one_file_too_and_names_no_place(cli, tmp_path):
    save_file(
        {
            name: one.contiguous()
            for name, one in build_network(
                _small(), sigma=0.3, seed=5
            ).named_parameters()
        },
        tmp_path / "kept.safetensors",
    )
    loaded = ("state=loaded", f"state.path={tmp_path}/kept.safetensors")
    answer = cli("export", *SMALL[:-1], *loaded, "seeds=1", "into=mine.zip")
    assert answer.code == 0, answer.err
    with zipfile.ZipFile(tmp_path / "mine.zip") as opened:
        texts = {name: opened.read(name) for name in opened.namelist()}
    assert set(texts) == {
        f"mine/{name}"
        for name in (
            "README.md",
            "batch.npz",
            "held_out.npz",
            "network.json",
            "weights.safetensors",
        )
    }
    assert all(str(tmp_path).encode() not in text for text in texts.values())
    about = json.loads(texts["mine/network.json"])
    assert (about["sigma"], about["seed"], about["step"]) == (None, 1234, None)
    assert about["settings"]["state"]["path"] == "kept.safetensors"
    assert about["loss"] == {"module": "CrossEntropy", "reduction": "mean"}
    assert [one["name"] for one in about["weights"]][:3] == ["W_E", "W_pos", "W_Q"]


@pytest.mark.parametrize(
    ("name", "mlp"), [("plain", "relu"), ("model.mlp=gelu", "gelu")]
)
def test_every_variant_has_a_name(cli, tmp_path, name, mlp):
    answer = cli(
        "export",
        *SMALL,
        "seeds=1",
        "sweep.variants=[{}, {model.mlp: gelu}]",
        f"variant={name}",
        "into=mine",
    )
    assert answer.code == 0, answer.err
    assert (
        json.loads((tmp_path / "mine/network.json").read_text())["settings"]["model"][
            "mlp"
        ]
        == mlp
    )


def _small():
    return compose(list(SMALL)).config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep=sigma", "seed=1234"], "sigma must say which one"),
        ([*SMALL, "seeds=1", "sigma=0.4"], "sigma is none of this sweep's"),
        ([*SMALL, "seed=7"], "first_seed=7 seeds=1"),
        ([*SMALL, "seeds=2"], "seed must say which one"),
        ([*SMALL, "seeds=1", "step=3"], "step means nothing here"),
        ([*SMALL, "seeds=1", "sigmas=1"], "sigmas"),
        ([*SMALL, "seeds=1", "into=there"], "already contains files"),
        (
            ["sweep=depth", "grid.values=[0.3]", "seeds=1"],
            "num_layers must say which one",
        ),
        (
            ["sweep=layernorm", "grid.values=[0.3]", "seeds=1", "variant=none"],
            "variant",
        ),
        (["outputs/nothing"], "there is no such table"),
        (["there", "seeds=3"], "seeds has no effect on a table that is named"),
        ([*SMALL, "seeds=1", "--cfg", "job"], "prints no settings"),
    ],
)
def test_what_leaves_no_single_network_is_refused(cli, tmp_path, words, said):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").touch()
    answer = cli("export", *words)
    assert answer.code == 2, answer.err
    assert said in answer.err, answer.err
    assert {path.name for path in tmp_path.rglob("*")} == {"there", "file"}


@pytest.mark.long
def test_the_config_hashes_are_those_of_the_table(made):
    about = json.loads((made / "network/network.json").read_text())
    found = {
        (row["quantity"], row["config"])
        for row in rows(made / "outputs/ten_numbers/table.csv")
    }
    same = {name: one for name, one in about["config"].items() if (name, one) in found}
    assert set(same) >= {
        "frobenius",
        "trace",
        "loss",
        "accuracy",
        "noise_scale",
        "critical_step",
    }
