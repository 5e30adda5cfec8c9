"""What is measured is what the key says: files, code and data that change between two runs, or during one."""

import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hessfig.config.enums import Data, DType, Kind, Method, Reuse, State
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.config.training_settings import StateConfig
from hessfig.errors import UserError
from hessfig.states import point
from hessfig.states.initialised import build_network
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.outputs import config_hash
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import on_this_machine, run_sweep
from hessfig.sweep.variant import Variant
from hessfig.terms import Part
from tests.daily import daily, thinned
from tests.toys import ARCHITECTURES, toy_config, toy_task

FACTORY = """
import json
from pathlib import Path
import torch
from torch import nn

class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * SCALE

HERE = Path(__file__).parent
SCALE = json.loads((HERE / "scale.json").read_text()) if (HERE / "scale.json").exists() else 1.0

def make(seed):
    torch.manual_seed(seed)
    network = Scaled(3, 2)
    if (HERE / "weights.pt").exists():
        network.load_state_dict(torch.load(HERE / "weights.pt"))
    return network, torch.randn(4, 3), torch.tensor([0, 1, 1, 0]), "cross_entropy"

def unseeded(seed):
    return nn.Linear(3, 2), torch.ones(4, 3), torch.tensor([0, 1, 1, 0]), "cross_entropy"

def leaves(seed):
    raise SystemExit(0)
"""
QUANTITY = """
from hessfig.measurements.quantity import Measured, Quantity, row_of

def measure(problem, request):
    return Measured([row_of(quantity="one", part="H", value=1.0, error=0.0, status="ok")])

QUANTITY = Quantity("one", measure)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(FACTORY)
    (tmp_path / "one.py").write_text(QUANTITY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def own(factory="net.py:make", **settings):
    model = ModelConfig(kind=Kind.python, factory=factory)
    task = TaskConfig(data=Data.python)
    estimator = EstimatorConfig(Method.dense)
    chosen = {
        "model": model,
        "task": task,
        "estimator": estimator,
        "blocks": ["weight"],
        "seeds": 1,
    }
    return toy_config("outputs", **{**chosen, **settings})


def loaded(folder):
    return Config(
        model=ARCHITECTURES["softmax"],
        task=toy_task(ARCHITECTURES["softmax"]),
        state=StateConfig(State.loaded, str(folder / "state.safetensors")),
        estimator=EstimatorConfig(Method.dense),
        blocks=["W_V"],
        seeds=1,
    )


def pictures(folder):
    model = ModelConfig(kind=Kind.vit, d_model=4, d_mlp=6, patch=4)
    task = TaskConfig(data=Data.digits, batch_size=4, path=str(folder / "pictures.npz"))
    return Config(
        model=model,
        task=task,
        estimator=EstimatorConfig(Method.dense),
        blocks=["W_V"],
        seeds=1,
    )


def write_state(folder, seed):
    network = build_network(loaded(folder), sigma=0.3, seed=seed)
    save_file(
        {name: p.detach().clone() for name, p in network.named_parameters()},
        folder / "state.safetensors",
    )


def write_pictures(folder, seed):
    images = np.random.default_rng(seed).random((20, 8, 8))
    np.savez(folder / "pictures.npz", images=images, labels=np.arange(20) % 10)


def write_weights(folder, seed):
    torch.manual_seed(seed)
    torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "weights.pt")


def write_quantity(folder, seed):
    (folder / "one.py").write_text(QUANTITY.replace("value=1.0", f"value={seed}.0"))


def first_cell(config):
    """Return the first cell of a run as planned now, its key settled."""
    cell = Sweep([("", config)]).cells[0]
    assert cell.key
    return cell


def values(cell):
    return [row["value"] for row in compute_cell(cell).rows]


Write = Callable[[Path, int], None]
FILES = {
    "state.path": (
        loaded,
        write_state,
        "state.path: the content of .*state.safetensors is not what was",
    ),
    "task.path": (
        pictures,
        write_pictures,
        "task.path: the content of .*pictures.npz is not what was",
    ),
    "what a factory reads": (
        lambda folder: own(),
        write_weights,
        "returned something else than when this run",
    ),
    "a quantity's file": (
        lambda folder: own(quantities=["one.py:QUANTITY"]),
        write_quantity,
        "quantities: the content of one.py:QUANTITY is not what was",
    ),
}


@pytest.mark.parametrize("what", thinned(FILES, 2))
def test_a_file_replaced_after_planning_fails_the_cell_by_name_and_is_another_cell_afterwards(
    folder, what
):
    config_of, write, message = FILES[what]
    write(folder, 1)
    planned = first_cell(config_of(folder))
    before = values(planned)
    write(folder, 2)
    with pytest.raises(UserError, match=message) as caught:
        compute_cell(planned)
    assert caught.value.got
    assert caught.value.allowed
    assert caught.value.remedy
    again = first_cell(config_of(folder))
    assert again.key != planned.key
    assert values(again) != before
    write(folder, 1)
    assert first_cell(config_of(folder)).key == planned.key
    assert values(planned) == before


def test_a_constant_that_no_state_holds_makes_other_cells(folder):
    """The file is read when the module is imported: another process, as every command is, imports it anew."""
    first = first_cell(own())
    (folder / "scale.json").write_text("1.01")
    (folder / "net.py").touch()
    assert first_cell(own()).key != first.key
    (folder / "scale.json").unlink()
    (folder / "net.py").touch()
    assert first_cell(own()).key == first.key


def test_the_code_beside_a_factory_counts(folder):
    (folder / "net.py").write_text(
        FACTORY.replace("import json", "import json, helper_of_net")
    )
    (folder / "helper_of_net.py").write_text("import other_of_net\n")
    (folder / "other_of_net.py").write_text("")
    first = first_cell(own())
    (folder / "other_of_net.py").write_text("# another text\n")
    for name in ("helper_of_net", "other_of_net"):
        sys.modules.pop(name)
    (folder / "net.py").touch()
    assert first_cell(own()).key != first.key


def test_a_factory_that_draws_anew_at_every_call_fails_its_cells(folder):
    with pytest.raises(
        UserError, match=r"returned something else(.|\n)*torch.manual_seed\(seed\)"
    ):
        compute_cell(first_cell(own("net.py:unseeded")))


def test_a_factory_that_exits_is_an_error(folder):
    with pytest.raises(
        UserError, match=r"net.py:leaves fails(.|\n)*SystemExit: 0 \(leaves, net.py:"
    ):
        Sweep([("", own("net.py:leaves"))])


def test_an_import_that_exits_is_an_error(folder):
    (folder / "net.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match=r"net.py fails(.|\n)*SystemExit: 0"):
        Sweep([("", own())])


@pytest.mark.parametrize("group", ["state", "task", "model"])
def test_a_hash_in_the_settings_pins_a_file(folder, group):
    config = {"state": loaded, "task": pictures, "model": lambda folder: own()}[group](
        folder
    )
    write_state(folder, 1)
    write_pictures(folder, 1)
    pinned = Sweep([("", config)]).variants[0].config
    found = getattr(pinned, group).sha256
    assert len(found) == 64
    assert Sweep([("", pinned)]).variants[0].config == pinned
    other = replace(config, **{group: replace(getattr(config, group), sha256="0" * 64)})
    with pytest.raises(
        UserError, match=rf"is not what was planned(.|\n)*{group}.sha256={'0' * 64}"
    ):
        Sweep([("", other)])


def test_a_file_that_cannot_be_read_is_refused(folder, monkeypatch):
    write_state(folder, 1)

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(point, "fingerprint", forbidden)
    with pytest.raises(
        UserError, match=r"state.path: .* cannot be read(.|\n)*Permission denied"
    ):
        Sweep([("", loaded(folder))])


def test_pins_alone_make_no_other_table(folder):
    write_state(folder, 1)
    variants = Sweep([("", loaded(folder))]).variants
    bare = [Variant("", loaded(folder))]
    assert variants[0].config.state.sha256
    assert config_hash(variants) == config_hash(bare)


def test_a_hash_of_no_file_is_refused():
    config = toy_config()
    with pytest.raises(
        UserError, match=r"state.sha256: state.path does not name a file"
    ):
        Sweep([("", replace(config, state=replace(config.state, sha256="0" * 64)))])


@pytest.mark.long
def test_a_run_reuses_what_the_factory_still_returns_and_says_so(folder):
    def counts(config):
        found = run_sweep(Sweep([("", config)]))
        return found.measured, found.reused, found.failed

    def replaced(cells, store):
        write_weights(folder, 3)
        yield from on_this_machine(cells, store)

    config = own(seeds=2)
    assert counts(config) == (2, 0, 0)
    assert counts(config) == (0, 2, 0)
    write_weights(folder, 2)
    found = run_sweep(Sweep([("", config)]), replaced)
    assert (found.measured, found.failed) == (0, 2)
    causes = [
        path.read_text() for path in (folder / "outputs/sigma/failures").glob("*.txt")
    ]
    assert len(causes) == 2
    assert all("returned something else than when" in cause for cause in causes)
    assert counts(config) == (2, 0, 0)
    # Its code is as it was, so it is not called: 3 is what it returned when it was last
    # measured.
    write_weights(folder, 4)
    assert counts(dataclasses.replace(config, reuse=Reuse.sources)) == (0, 2, 0)
    assert counts(config) == (2, 0, 0)


TURNED = """
import json, torch
from pathlib import Path
from torch import nn

HERE = Path(__file__).parent

class Turned(nn.Module):
    def __init__(self, read):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = nn.Linear(3, 4), nn.LayerNorm(4, eps=read("eps")), nn.Linear(4, 2)
        self.read = read

    def forward(self, x):
        out = self.b(torch.tanh(self.norm(self.a(x))))
        if self.read("stop"):
            out = out.detach() / 2 + out / 2
        if self.read("penalty"):
            moved = (self.a.weight - self.a.weight.detach()).square().sum()
            out = out + 30 * torch.stack([moved, 0 * moved])
        if self.read("noise"):
            out.register_hook(lambda slope: slope + 1e-9 * torch.rand_like(slope)) if out.requires_grad else None
        return out

class Reader:
    def __init__(self, settings):
        self.get = settings.__getitem__  # bound to an object: Python shows its type alone

    def __call__(self, name):
        return self.get(name)

def make():
    settings = json.loads((HERE / "settings.json").read_text())
    torch.manual_seed(1)
    return Turned(Reader(settings)), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]), "cross_entropy"
"""
SETTINGS = {"stop": 0, "penalty": 0, "eps": 1e-5, "noise": 0}


def write_settings(folder, **changes):
    (folder / "turned.py").write_text(TURNED)
    (folder / "settings.json").write_text(json.dumps({**SETTINGS, **changes}))


def turned(**settings):
    return own("turned.py:make", **{"blocks": ["all"], "parts": [Part.H], **settings})


@pytest.mark.parametrize("dtype", daily([DType.float32, DType.float64], DType.float32))
@pytest.mark.parametrize(
    "changes", thinned([{"stop": 1}, {"penalty": 1}, {"eps": 1.003e-5}], 2), ids=str
)
def test_what_moves_derivatives_or_last_digits_makes_other_cells(
    folder, changes, dtype
):
    write_settings(folder)
    first = first_cell(turned(dtype=dtype))
    assert first_cell(turned(dtype=dtype)).key == first.key
    write_settings(folder, **changes)
    other = first_cell(turned(dtype=dtype))
    assert other.key != first.key
    with (
        nullcontext()
        if "eps" in changes
        else pytest.raises(
            UserError, match="second derivative does not match differences"
        )
    ):
        assert values(other)
    with pytest.raises(
        UserError, match="returned something else than when this run was planned"
    ):
        compute_cell(first)


def test_cells_of_derivatives_that_change_from_call_to_call_are_measured_again(folder):
    write_settings(folder, noise=1)
    with pytest.warns(
        RuntimeWarning,
        match=r"turned.py:make are measured again by every run: two calls",
    ):
        first = first_cell(turned())
    assert len(values(first)) == 1
    with pytest.warns(RuntimeWarning, match="measured again by every run"):
        variants = Sweep([("", turned())]).variants
        assert Sweep([("", turned())]).cells[0].key != first.key
        assert variants[0].reusable_contents() == {}


def test_the_manifest_says_what_the_witness_measured(folder):
    write_settings(folder)
    run_sweep(Sweep([("", turned())]))
    manifest = json.loads((folder / "outputs/sigma/manifest.json").read_text())
    (described,) = manifest["variants"]
    assert str(folder) not in json.dumps(manifest["variants"])
    assert described["witness"]["measured"]
    assert max(described["witness"]["off"].values()) < 1e-4
