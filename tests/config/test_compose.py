"""Every shipped configuration composes, passes the checks and measures at toy size."""

import dataclasses
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from hessfig.config.compose.overrides import as_word, hydra_quoted
from hessfig.config.enums import FigureGroup, Published
from hessfig.config.keys import as_plain
from hessfig.config.presets import choices, natural, shipped_figures, theory_studies
from hessfig.config.schema import GROUPS, Config
from hessfig.config.science import GridConfig
from hessfig.config.settings import settings
from hessfig.measurements.catalogue import quantity
from hessfig.studies.directions import slices
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from tests.config.composing import configs, job

SWEEPS = list(choices("sweep"))
FIGURES = [name for name in choices("figure") if name != "none"]
TOY = {
    "task.digits": 1,
    "task.batch_size": 2,
    "estimator.num_probes": 9,
    "spectrum.num_probes": 2,
    "seeds": 1,
}
# How many variants of a sweep are measured, evenly spread: the others differ from these
# in a number.
VARIANTS = [2, pytest.param(7, marks=pytest.mark.slow)]
# Of sweeps over a training.
TOY_TRAINING = {
    "state.step": "[1,3]",
    "training.steps": 3,
    "training.warmup": 1,
    "training.batch_size": 4,
    "training.evaluation_size": 8,
    "blocks": "[W_U]",
}
# Of sweeps along k, on top.
TOY_SAMPLES = {
    "task.batch_size": 6,
    "landscape.permutations": 5,
    "landscape.points": 4,
    "landscape.draws": 2,
    "landscape.first": 1,
    "landscape.curvatures": 1,
    "landscape.dimensions": "[1,2]",
}
ENCODERS = ["trained_transformers", "trained_spectra"]
RACE = ["race"]
# Up to eight heads.
WIDE = (
    "heads",
    "heads_zeros",
    "model_size_heads",
    "approximations_heads",
    "ratio_scale",
)
DIRECTIONS = ["slices", "critical_points", "trajectories"]
# A zero block has no condition number and a zero product no cosine, fewer than three
# positive curvatures no exponent; a search may find nothing, an expansion may stay
# where the loss is.
MAY_BE_ODD = (
    "_departure",
    "_horizon",
    "_cosine",
    "_decay",
    "curvature_exponent",
    *quantity("critical_points").gives,
)
NETWORK = """
import torch

def make(seed):
    torch.manual_seed(seed)
    network = torch.nn.Linear(2, 2, bias=False).double()
    return network, torch.ones(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.long), "cross_entropy"
"""


def toy_cells(sweep, most, folder):
    """Return a cell of each quantity of at most `most` variants: one sigma, one seed, a narrow network."""
    (folder / "network.py").write_text(NETWORK)
    narrow = {**TOY, "model.d_model": 16 if sweep in WIDE else 4}
    if sweep == "gpt2":
        narrow |= {
            "model.n_layers": 2,
            "model.n_heads": 2,
            "model.vocabulary": 5,
            "task.length": 4,
        }
    if sweep in ENCODERS:  # of random weights: the trained ones are fetched
        narrow |= {
            "model.n_layers": 2,
            "model.n_heads": 2,
            "model.vocabulary": 5,
            "task.length": 4,
        }
        narrow |= {
            "model.path": "null",
            "model.architecture": "bert",
            "estimator.num_probes": 2,
        }
    given = (
        [f"model.factory={hydra_quoted(f'{folder}/network.py:make')}"]
        if sweep == "network"
        else []
    )
    # Factors of a window are as many as its characters.
    if sweep == "approximations_text":
        narrow |= {"task.length": 8}
    narrow |= (
        TOY_TRAINING
        if "override /state: trained" in Path(f"conf/sweep/{sweep}.yaml").read_text()
        else {}
    )
    if sweep == "model_size_width":
        narrow |= {"sweep.vary": "{model.d_model: [4, 6]}"}
        del narrow["model.d_model"]
    if sweep == "sharpness_batch":
        narrow |= {"sweep.vary": "{training.batch_size: [2, 4]}"}
        del narrow["training.batch_size"]
    if sweep in DIRECTIONS:
        narrow |= {
            "directions.points": 5,
            "directions.steps": 3,
            "directions.evaluations": 5,
        }
    if "axis: index" in Path(f"conf/sweep/{sweep}.yaml").read_text():
        narrow |= TOY_SAMPLES
    words = [
        f"output_dir={folder}",
        *(f"{key}={value}" for key, value in narrow.items()),
    ]
    found = configs(f"sweep={sweep}", *words, *given)
    for _, config in found:
        config.grid = GridConfig(points=1, low=0.3)
    return Sweep(found[:: -(-len(found) // most)]).cells


@pytest.mark.parametrize("most", VARIANTS)
@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.long
def test_every_sweep_measures_at_toy_size(sweep, most, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(slices, "_ANGLES", 4)
    if sweep in RACE:
        pytest.importorskip(
            "pytorch_optimizer", reason="the extra `optimisers` is not installed"
        )
    for cell in toy_cells(sweep, most, tmp_path):
        found = compute_cell(cell)
        assert found.rows or found.arrays
        odd = {
            row["quantity"]
            for row in found.rows
            if row["status"] not in ("ok", "structural_zero")
        }
        assert all(
            one == "condition_number" or one.endswith(MAY_BE_ODD) for one in odd
        ), cell
        assert cell.config.sweep.name == sweep
        assert cell.config.sweep.about


@pytest.mark.parametrize("sweep", SWEEPS)
def test_no_sweep_repeats_a_default(sweep):
    lines = Path("conf/sweep", f"{sweep}.yaml").read_text().splitlines()
    repeated = (
        "  - override /estimator: auto",
        "dtype: float64",
        "quantities: [frobenius]",
        "  windows: [[null, 1.0]]",
    )
    assert not {*repeated} & {*lines}


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.long
def test_every_figure_names_itself_and_a_sweep_that_exists(figure):
    config = job(f"figure={figure}").config.figure
    assert config.name == figure
    assert config.layout
    assert not config.sweep or config.sweep in SWEEPS


@pytest.mark.parametrize(
    ("words", "drawn"),
    [
        ([], {"landscape.distance": 0.5}),
        (["figure.where={}"], {}),
        (["figure.where={seed: 1}"], {"seed": 1}),
        (["figure.where={}", "figure.where.seed=1"], {"seed": 1}),
        (["figure.where.seed=1"], {"landscape.distance": 0.5, "seed": 1}),
        (["figure.where={landscape.distance: 1}"], {"landscape.distance": 1}),
    ],
)
def test_numbers_to_draw_that_are_given_replace_those_of_the_figure(words, drawn):
    assert job("figure=landscape", *words).config.figure.where == drawn


def test_figures_have_orders_of_their_own_and_those_of_the_theory_no_sweep():
    found = [one for one in shipped_figures() if one.group != FigureGroup.own]
    assert len({figure.order for figure in found}) == len(found)
    studies = [one.name for one in found if one.group == FigureGroup.study]
    assert theory_studies() == studies == ["scalar", "bounds"]


def test_what_was_published_is_said_once():
    numbers = {
        one.name: one.sweep
        for one in shipped_figures()
        if one.published == Published.numbers
    }
    assert numbers == {
        "3a": "sigma",
        "3b": "layernorm",
        "5a": "linear_axis_short",
        "5b": "linear_axis",
        "6": "depth",
        "7": "softmax",
        "8": "mlp",
    }
    assert {
        one.name for one in shipped_figures() if one.published == Published.pictures
    } == {"1", "4"}


def test_names_sort_by_their_numbers():
    assert sorted(["eq5", "10", "3b", "3a", "1"], key=natural) == [
        "1",
        "3a",
        "3b",
        "10",
        "eq5",
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_has_a_line_of_help(group):
    for name, about in choices(group).items():
        assert about, f"{group}={name}"


def test_every_setting_has_a_line_of_help():
    groups = [
        field.name
        for field in dataclasses.fields(Config)
        if dataclasses.is_dataclass(getattr(Config(), field.name))
    ]
    assert groups == list(GROUPS)
    for key, setting in settings().items():
        assert setting.about, key
        assert setting.kind, key


def test_the_defaults_are_the_papers():
    """Files of sweeps say what departs from these: another default would be another experiment."""
    config = job().config
    assert (
        config.seeds,
        config.first_seed,
        config.dtype,
        config.estimator.num_probes,
    ) == (20, 1234, "float64", 20)
    assert (config.model.d_model, config.task.batch_size, config.task.digits) == (
        128,
        64,
        5,
    )
    assert (config.grid.low, config.grid.high, config.grid.points) == (0.01, 10.0, 20)
    assert (config.estimator.method, config.quantities) == ("auto", ["frobenius"])
    assert (config.blocks, config.sweep.windows) == (["W_V", "W_Q"], [[None, 1.0]])


def test_groups_hold_no_class_paths():
    for path in Path("conf").rglob("*.yaml"):
        assert "_target_" not in path.read_text(), path


def test_the_schema_and_the_plain_form_agree():
    plain = as_plain(Config())
    assert plain["model"]["norm"] == "none"
    assert plain["parts"] == ["H_o", "H_f", "H"]
    assert plain == as_plain(job("sweep.about=").config) | {"sweep": plain["sweep"]}


@pytest.mark.parametrize(
    "text", ["a b", "it's", "back\\", "b\\'x", "ü,{}=[]", "'", "''", "\\\\", "a:b#c"]
)
@pytest.mark.long
def test_any_text_can_be_quoted(text):
    assert job(f"output_dir={hydra_quoted(text)}").config.output_dir == text


# Words that are plain are written as they are, and read as numbers where they are some.
TEXTS = st.text(alphabet="a1 \\'\"$,=[]{}:~+%#()\n\u00e9", max_size=8).filter(
    lambda text: not text.isalnum()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(VALUES)
@example(r"$\sigma^{2}$, \\ 'it'")
@example("ends with \\\n")
@settings_of_hypothesis(max_examples=200, deadline=None)
def test_any_value_of_pythons_is_read_back_as_it_is(value):
    assert (
        OverridesParser.create().parse_override(as_word("figure.title", value)).value()
        == value
    )
