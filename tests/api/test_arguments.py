"""Every argument of hessfig.Problem and hessfig.measure: what cannot be meant is refused with what would fit."""

import sys

import numpy
import pytest
import torch
from torch import Tensor, nn

import hessfig
from hessfig.errors import UserError
from tests.daily import daily, thinned

torch.manual_seed(0)
X = torch.randn(4, 3)
Y = torch.tensor([0, 1, 1, 0])
NET = nn.Linear(3, 2)


class Then(nn.Module):
    """A linear map, and what is done with its outputs."""

    def __init__(self, then, **held):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.then = then
        for name, one in held.items():
            setattr(self, name, one)

    def forward(self, x):
        return self.then(self.linear(x))


class Loss(nn.Module):
    """A loss of the user's own."""

    def __init__(self, value, reduction="mean"):
        super().__init__()
        self.value, self.reduction = value, reduction

    def forward(self, output, target):
        return self.value(output, target)


class Around(nn.Module):
    """A network that holds itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.me = self


def fails(*given):
    raise RuntimeError(f"nothing for {len(given)}")


def exits(*given):
    sys.exit(0)


def held(parameter):
    return nn.Parameter(parameter, requires_grad=False)


def tied():
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    return network


def wide():
    """A network whose weight has more entries on its second axis than on its last."""
    return nn.Sequential(nn.Conv1d(3, 2, 1), nn.Flatten())


EMPTY = nn.Parameter(torch.zeros(0, 3))
PROBLEMS = {
    "no names": ({"weights": {}}, "weights: no names"),
    "a name that is a number": ({"weights": {1: "weight"}}, "a name is plain text"),
    "an empty group": ({"weights": {"a": []}}, "group a is empty"),
    "a group with a weight twice": (
        {"weights": {"a": ["weight", "weight"]}},
        "a contains entries twice(.|\n)*6 entries",
    ),
    "a group of overlapping slices": (
        {
            "weights": {
                "a@2": [("weight", numpy.s_[:, :2]), ("weight", numpy.s_[:, 1:])]
            }
        },
        "a@2 contains entries twice(.|\n)*have 2 entries",
    ),
    "a group with a tied weight twice": (
        {"network": tied(), "weights": {"a": ["0.weight", "1.weight"]}},
        "twice",
    ),
    "a module for a weight": ({"weights": {"a": NET}}, "no parameter"),
    "a layer beyond all": (
        {"weights": {"a@99999999999999999999": "weight"}},
        "a name is plain text",
    ),
    "an empty slice": (
        {"weights": {"a": ("weight", numpy.s_[2:2])}},
        "slice of a is not one",
    ),
    "a slice that steps back": (
        {"weights": {"a": ("weight", numpy.s_[:, ::-1])}},
        "slice of a has a negative step(.|\n)*ascending order",
    ),
    "an ellipsis and too long a slice": (
        {"network": wide(), "weights": {"a": ("0.weight", numpy.s_[..., :3])}},
        "slice of a is not one",
    ),
    "a weight without entries": (
        {"network": Then(lambda f: f, k=EMPTY), "weights": {"a": "k"}},
        "the parameter of a has no entries",
    ),
    "a copy": (
        {"weights": {"a": ("weight", ([0, 1], [1, 2]))}},
        "slice of a is not one of its",
    ),
    "dropout": (
        {"network": nn.Sequential(nn.Dropout(0.5), NET)},
        "training mode(.|\n)*network.eval",
    ),
    "inputs by a wrong name": (
        {"inputs": {"x": X}},
        "the network cannot take the batch(.|\n)*argument 'x'",
    ),
    "a function of network and batch": (
        {"inputs": (X, X), "targets": lambda network, batch: X.sum()},
        "compute_loss=f",
    ),
    "a loss misspelt": (
        {"loss": "crossentropy"},
        "loss is not known(.|\n)*did you mean 'cross_entropy'",
    ),
    "no network": ({"network": None}, "network is not a module"),
    "no parameters": ({"network": nn.Tanh()}, "there are none"),
    "complex parameters": (
        {"network": Then(lambda f: f, k=held(torch.ones(1, dtype=torch.cfloat)))},
        "not dense real",
    ),
    "a lazy network": (
        {"network": nn.LazyLinear(2)},
        "without a shape(.|\n)*call the network once",
    ),
    "a network without numbers": (
        {"network": nn.Linear(3, 2, device="meta")},
        "without numbers(.|\n)*weight, bias(.|\n)*to_empty",
    ),
    "a buffer without numbers": (
        {"network": Then(lambda f: f, k=nn.Buffer(torch.ones(1, device="meta")))},
        "without numbers(.|\n)*got:     k",
    ),
    "inputs without numbers": (
        {"inputs": torch.ones(2, 3, device="meta")},
        "a tensor that is meta(.|\n)*a tensor with numbers",
    ),
    "nested inputs": (
        {"inputs": torch.nested.nested_tensor([X, X], layout=torch.jagged)},
        "a tensor that is nested(.|\n)*to_padded_tensor(.|\n)*cross_entropy",
    ),
    "batches by rank": ({"sharded_batches": True}, "is not sharded over ranks"),
    "several devices": ({"network": nn.DataParallel(NET)}, "spread over devices"),
    "a network of itself": ({"network": Around()}, "contains itself"),
    "a network that raises": (
        {"network": Then(fails)},
        "network raises RuntimeError(.|\n)*nothing for 1",
    ),
    "a network that exits": ({"network": Then(exits)}, "network raises SystemExit"),
    "complex outputs": (
        {"network": Then(lambda f: f.to(torch.cfloat))},
        "output is not a tensor of real",
    ),
    "random outputs": (
        {"network": Then(lambda f: f + torch.rand(2))},
        "change from call to call",
    ),
    "no inputs": ({"inputs": None}, "are not tensors"),
    "no samples": ({"inputs": X[:0], "targets": Y[:0]}, "inputs: no sample"),
    "more targets than inputs": ({"targets": [Y, Y]}, "are not tensors"),
    "batches of odd shapes": (
        {"inputs": [X, X[:, :2]], "targets": [Y, Y]},
        "network raises RuntimeError",
    ),
    "a single number": ({"inputs": torch.tensor(1.0)}, "a single number"),
    "sparse inputs": ({"inputs": X.to_sparse()}, "that is sparse"),
    "complex inputs": ({"inputs": X.to(torch.cfloat)}, "that is complex"),
    "a class that is not there": ({"targets": Y + 5}, "loss raises IndexError"),
    "too few targets": ({"targets": Y[:2]}, "loss raises ValueError"),
    "every target ignored": (
        {"targets": torch.full((4,), -100)},
        "divisor of the loss is zero",
    ),
    "a loss that is a class": ({"loss": nn.CrossEntropyLoss}, "loss is not known"),
    "a loss without reduction": (
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        "loss is not known",
    ),
    "a constant loss": (
        {"loss": Loss(lambda f, y: torch.tensor(1.0))},
        "no derivative(.|\n)*detached",
    ),
    "a loss of targets alone": (
        {"loss": Loss(lambda f, y: torch.ones((), requires_grad=True))},
        "does not depend",
    ),
    "a complex loss": (
        {"loss": Loss(lambda f, y: f.mean().to(torch.cfloat))},
        "cannot take the network's output",
    ),
    "a loss of shape (1,)": (
        {"loss": Loss(lambda f, y: f.mean().view(1))},
        "shape ..(.|\n)*squeeze",
    ),
    "a loss of several": (
        {"loss": Loss(lambda f, y: f.mean(1))},
        "tensor .4,.(.|\n)*mean",
    ),
    "a loss that is no tensor": (
        {"loss": Loss(lambda f, y: 3.0)},
        "the loss does not return one real number(.|\n)*float",
    ),
    "a loss that raises": (
        {"loss": Loss(fails)},
        "loss raises RuntimeError(.|\n)*nothing for 2",
    ),
    "a random loss": (
        {"loss": Loss(lambda f, y: f.mean() * torch.rand(()))},
        "the loss is random",
    ),
    "a loss that broadcasts": (
        {"loss": nn.MSELoss(), "targets": torch.randn(4, 1)},
        "would be broadcast",
    ),
}
REQUESTS = {
    "blocks=3": ({"blocks": 3}, "blocks: a name, or a list"),
    "blocks of three": (
        {"blocks": [("weight", "weight", "bias")]},
        "blocks: a name, or a list",
    ),
    "blocks misspelt": ({"blocks": "wieght"}, "did you mean 'weight'"),
    "blocks of a long layer": (
        {"blocks": ["weight@" + "9" * 5000]},
        "not in layer 999",
    ),
    "30 000 blocks": ({"blocks": ["weight"] * 30_000}, "too many"),
    "a pair without a trace": (
        {"blocks": [("weight", "bias")], "quantities": ["trace"]},
        "cannot be had for any of these blocks",
    ),
    "no parts": ({"parts": []}, "parts: a name, or a list"),
    "parts misspelt": ({"parts": ["Ho"]}, "did you mean 'H_o'"),
    "parts twice": ({"parts": ["H", "H"]}, "parts: each is named once"),
    "quantities=None": ({"quantities": None}, "quantities: a name, or a list"),
    "quantities without a task": ({"quantities": "accuracy"}, "no examples besides"),
    "estimator misspelt": ({"estimator": "hutchison"}, "did you mean 'hutchinson'"),
    "estimator=exact": ({"estimator": "exact"}, "no exact H"),
    "num_probes=0": ({"num_probes": 0}, "num_probes: a whole number"),
    "num_probes=2": ({"num_probes": 2}, "a third of its probes"),
    "seed=True": ({"seed": True}, "seed: a whole number"),
    "seed=-1": ({"seed": -1}, "seed: a whole number(.|\n)*from 0 to"),
    "device=meta": ({"device": "meta"}, "device: it is not there"),
    "device=cuda:99": ({"device": "cuda:99"}, "device: it is not there"),
    "dtype=float16": ({"dtype": "float16"}, "did you mean 'float64'"),
    "dtype of torch": (
        {"dtype": torch.float64},
        "dtype: there is no such choice(.|\n)*float32",
    ),
    "spectrum=3": ({"spectrum": 3}, "spectrum: no settings"),
    "spectrum.step": (
        {"spectrum": {"step": 3}},
        "spectrum: there is no such choice(.|\n)*did you mean 'steps'",
    ),
    "spectrum.tolerance=2": (
        {"spectrum": {"tolerance": 2}, "quantities": "largest_eigenvalue"},
        "spectrum.tolerance",
    ),
    "spectrum.k=7": (
        {"spectrum": {"k": 7}, "quantities": "largest_eigenvalue"},
        "fewer eigenvalues",
    ),
    "spectrum.k=True": ({"spectrum": {"k": True}}, "spectrum.k is of another kind"),
    "spectrum.k=10**30": ({"spectrum": {"k": 10**30}}, "spectrum.k is too large"),
    "spectrum.probes of lists": (
        {"spectrum": {"probes": ["gaussian"]}},
        "spectrum.probes: there is no such",
    ),
}


def problem(**changed):
    return hessfig.Problem(**{"network": NET, "inputs": X, "targets": Y, **changed})


@pytest.mark.parametrize("case", PROBLEMS)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_problems_that_cannot_be_measured_are_refused(case):
    changed, said = PROBLEMS[case]
    with pytest.raises(UserError, match=said) as caught:
        hessfig.measure(problem(**changed))
    assert caught.value.got is not None
    assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize("case", REQUESTS)
def test_requests_that_cannot_be_served_are_refused(case):
    settings, said = REQUESTS[case]
    with pytest.raises(ValueError, match=said) as caught:
        hessfig.measure(problem(), **settings)
    assert isinstance(caught.value, UserError)
    assert caught.value.got is not None
    assert caught.value.allowed
    assert caught.value.remedy


def test_another_thing_than_a_problem_is_refused():
    with pytest.raises(UserError, match="problem is of another kind"):
        hessfig.measure((NET, X, Y))
    with pytest.raises(UserError, match="dtype: there is no such choice"):
        problem().objective("float128")


def test_a_layer_whose_names_overlap_is_no_group():
    weights = {"W@1": "weight", "row@1": ("weight", 0), "b@1": "bias"}
    apart = hessfig.measure(problem(weights=weights), blocks=["W", "row", ("W", "row")])
    assert len(apart) == 9
    assert apart["value"][0] > 0
    with pytest.raises(
        UserError, match=r"layer of layer 1 contains entries twice(.|\n)*W and row"
    ):
        hessfig.measure(problem(weights=weights), blocks="layer")


def test_a_parameter_without_entries_is_named():
    given = problem(network=Then(lambda f: f, k=EMPTY))
    with pytest.raises(UserError, match="the parameter k has no entries"):
        hessfig.measure(given, blocks=["k"])
    assert set(hessfig.measure(given)["row"]) == {"linear.weight", "linear.bias"}


def test_a_slice_behind_an_ellipsis_is_one_of_the_last_axis():
    network = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten())
    weights = {"whole": ("0.weight", numpy.s_[..., 0:3])}
    given = problem(network=network, inputs=X[:, None], weights=weights)
    plain = problem(network=network, inputs=X[:, None])
    whole = hessfig.measure(given, blocks="whole", estimator="dense")
    assert (
        whole["value"].tolist()
        == hessfig.measure(plain, blocks="0.weight", estimator="dense")[
            "value"
        ].tolist()
    )


def test_views_of_few_axes_are_those_of_slices():
    """An ellipsis, and a single entry: products have the probes on an axis of their own, behind."""
    views = {
        "ellipsis": numpy.s_[..., 0],
        "column": numpy.s_[:, 0:1],
        "entry": (0, 1),
        "square": numpy.s_[0:1, 1:2],
    }
    weights = {name: ("weight", index) for name, index in views.items()}
    found = hessfig.measure(problem(weights=weights), estimator="dense")[
        "value"
    ].tolist()
    assert found[:3] == found[3:6]
    assert found[6:9] == found[9:]


def test_a_tied_weight_is_one_under_both_of_its_names():
    weights = {"first": "0.weight", "second": "1.weight"}
    table = hessfig.measure(
        problem(network=tied(), weights=weights),
        blocks=["first", "second", ("first", "second")],
    )
    assert table["value"][:3].tolist() == pytest.approx(
        table["value"][3:6].tolist(), rel=1e-12
    )
    assert table["value"][:3].tolist() == pytest.approx(
        table["value"][6:].tolist(), rel=1e-12
    )


SAME = {
    "one quantity": ({}, {"quantities": "frobenius"}),
    "one block": ({}, {"blocks": "weight"}),
    "numpy's numbers": ({}, {"num_probes": numpy.int64(20), "seed": numpy.int32(0)}),
    "a device": ({}, {"device": torch.device("cpu")}),
    "no spectrum": ({}, {"spectrum": None}),
    "inputs with gradients": ({"inputs": X.clone().requires_grad_()}, {}),
    "batches in a tuple": ({"inputs": (X[:1], X[1:]), "targets": (Y[:1], Y[1:])}, {}),
    "a whole parameter beside": (
        {"network": Then(lambda f: f, k=held(torch.arange(2)))},
        {"blocks": "linear.weight"},
    ),
}


@pytest.mark.parametrize("case", thinned(SAME, 2))
def test_what_is_meant_alike_is_measured_alike(case):
    changed, settings = SAME[case]
    if "network" in changed:
        changed["network"].linear.load_state_dict(NET.state_dict())
    found = hessfig.measure(problem(**changed), **settings)
    plain = hessfig.measure(problem())[: len(found)]
    assert found["value"].tolist() == pytest.approx(plain["value"].tolist(), rel=1e-12)


def test_one_part_is_a_list_of_it():
    assert set(hessfig.measure(problem(), parts="H_o")["part"]) == {"H_o"}


def test_frozen_networks_and_inference_tensors_are_measured():
    with torch.inference_mode():
        inputs = X.clone()
        network = nn.Linear(3, 2)
        network.load_state_dict(NET.state_dict())
        inside = hessfig.measure(problem())["value"].tolist()
    frozen = nn.Linear(3, 2).requires_grad_(False)
    frozen.load_state_dict(NET.state_dict())
    plain = hessfig.measure(problem())["value"].tolist()
    for changed in ({"inputs": inputs}, {"network": network}, {"network": frozen}):
        assert hessfig.measure(problem(**changed))["value"].tolist() == plain
    assert inside == plain


@pytest.mark.parametrize(
    "quantity", ["frobenius", "trace", "spectrum", "gradient_norm", "hessian"]
)
def test_parameters_that_are_not_reached_have_zeros(quantity):
    network = Then(lambda f: f, k=nn.Parameter(torch.ones(3)))
    table = hessfig.measure(problem(network=network), blocks="k", quantities=quantity)
    block = table[table["row"] == "k"]
    finite = block[block["quantity"] != "condition_number"]
    assert (finite["value"] == 0).all()
    assert (finite["error"] == 0).all()


def test_a_network_that_no_parameter_reaches_is_zero_and_said():
    with pytest.warns(
        RuntimeWarning, match="no parameter reaches the network's outputs"
    ):
        table = hessfig.measure(
            problem(network=Then(Tensor.detach)),
            quantities=["frobenius", "gradient_norm"],
        )
    assert (table["value"] == 0).all()


def test_a_linear_loss_has_no_curvature():
    table = hessfig.measure(
        problem(loss=Loss(lambda f, y: f.mean())),
        quantities=["frobenius", "largest_eigenvalue"],
    )
    assert table["value"].abs().max() < 1e-15


QUANTITIES = (
    "frobenius",
    "trace",
    "spectrum",
    "largest_eigenvalue",
    "density",
    "loss",
    "gradient_norm",
    "gradient_covariance",
    "stationarity",
    "landscape_difference",
    "landscape_integrals",
    "hessian_distance",
)


@pytest.mark.parametrize("quantity", thinned(QUANTITIES, 2))
@pytest.mark.parametrize("place", daily(["inputs", "weights"], "weights"))
@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning", "ignore:.*gradients of single samples"
)
def test_what_is_not_finite_is_said_with_every_number(place, quantity):
    network = nn.Linear(3, 2)
    inputs = X.clone()
    with torch.no_grad():
        (inputs if place == "inputs" else network.weight)[0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="numbers are not finite .*look for nan"):
        table = hessfig.measure(
            problem(network=network, inputs=inputs),
            blocks="weight",
            quantities=quantity,
        )
    assert len(table)
    assert set(table["status"]) == {"nonfinite"}
    assert table["error"].isna().all()
    assert not table.attrs["arrays"]
