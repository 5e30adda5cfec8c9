"""Every engine on a GPU gives the CPU's numbers: probes are drawn on the CPU, so that only rounding differs."""

import dataclasses
import math

import pytest
import torch

import hessfig
from hessfig.config.enums import DType, Method, Norm, Products
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.measurements.catalogue import quantities
from hessfig.studies.directions import slices
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.variant import Variant
from hessfig.terms import Optimiser
from tests.measurements.test_catalogue import CONFIG, WHOLE_TOO

TOLERANCE = {DType.float64: 1e-10, DType.float32: 2e-3}
# Seconds; and a search, whose end rounding decides.
APART = {"training_cost", "critical_points"}
# The training in float64 too; without SOAP, whose eigenvectors of equal eigenvalues are
# not unique.
IN_FLOAT64 = {"training": dataclasses.replace(CONFIG.training, dtype=DType.float64)}
WITHOUT_SOAP = dataclasses.replace(
    WHOLE_TOO["along"]["directions"],
    rules=[one for one in Optimiser if one != Optimiser.soap],
)
ENGINES = {
    "hutchinson": EstimatorConfig(),
    "curvlinops": EstimatorConfig(products=Products.curvlinops),
    "aligned": EstimatorConfig(method=Method.aligned),
    "auto": EstimatorConfig(method=Method.auto),
    "dense": EstimatorConfig(method=Method.dense),
    "xtrace": EstimatorConfig(method=Method.xtrace),
}


needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA GPU on this machine"
)


def numbers(config, device):
    return compute_cell(
        Cell(Variant("", dataclasses.replace(config, device=device)), 0.5, 1234)
    ).rows


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", [Norm.none, Norm.pre])
def test_the_gpu_gives_the_numbers_of_the_cpu(engine, dtype, norm):
    model = ModelConfig(n_layers=2, d_model=8, norm=norm)
    task = TaskConfig(digits=1, batch_size=3)
    config = Config(model=model, task=task, estimator=ENGINES[engine], dtype=dtype)
    on_cpu = numbers(config, "cpu")
    on_gpu = numbers(config, "cuda")
    for ours, theirs in zip(on_cpu, on_gpu, strict=True):
        assert theirs["value"] == pytest.approx(ours["value"], rel=TOLERANCE[dtype]), (
            ours
        )


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("name", sorted(set(quantities()) - APART))
def test_every_quantity_is_the_same_on_the_gpu(name, tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "_ANGLES", 4)
    settings = {
        "quantities": [name],
        "output_dir": str(tmp_path),
        **IN_FLOAT64,
        **WHOLE_TOO.get(name, {}),
    }
    settings |= {"directions": WITHOUT_SOAP} if name == "along" else {}
    (cell,) = Sweep([("", dataclasses.replace(CONFIG, **settings))]).cells
    there = dataclasses.replace(
        cell.variant, config=dataclasses.replace(cell.config, device="cuda")
    )
    on_cpu = compute_cell(cell)
    on_gpu = compute_cell(dataclasses.replace(cell, variant=there))
    largest = max(
        (abs(row["value"]) for row in on_cpu.rows if math.isfinite(row["value"])),
        default=0.0,
    )
    for ours, theirs in zip(on_cpu.rows, on_gpu.rows, strict=True):
        assert theirs["value"] == pytest.approx(
            ours["value"], rel=1e-6, abs=1e-9 * largest, nan_ok=True
        ), ours
    assert on_cpu.arrays.keys() == on_gpu.arrays.keys()


@pytest.mark.cuda
@needs_gpu
def test_operators_and_approximations_are_the_same_on_the_gpu():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3)
    )
    problem = hessfig.Problem(network, torch.randn(9, 5), torch.randint(3, (9,)))
    vectors = torch.randn(35, 2, dtype=torch.float64)
    for part in ("H", "H_o", "H_f"):
        here, there = (
            problem.operator("0.weight", part, device=device)
            for device in ("cpu", "cuda")
        )
        torch.testing.assert_close(
            (there @ vectors.cuda()).cpu(), here @ vectors, rtol=1e-10, atol=1e-12
        )
    assert there.device.type == "cuda"
    here, there = (
        problem.operator("0.weight", "H_o", device=device) for device in ("cpu", "cuda")
    )
    ours, theirs = (
        one.solve(vectors[:, 0].to(one.device), damping=0.1) for one in (here, there)
    )
    torch.testing.assert_close(theirs.x.cpu(), ours.x, rtol=1e-6, atol=1e-9)
    kfac = problem.approximation("kfac", "0.weight")
    again = hessfig.Problem(
        network.cuda(), *(one.cuda() for one in (problem.inputs, problem.targets))
    )
    torch.testing.assert_close(
        again.approximation("kfac", "0.weight").dense(),
        kfac.dense(),
        rtol=1e-6,
        atol=1e-9,
    )


class Recurrent(torch.nn.Module):
    """A recurrent network; with `kind` LSTM or GRU, cuDNN has no second derivative of it."""

    def __init__(self, kind):
        super().__init__()
        self.body = getattr(torch.nn, kind)(3, 4, batch_first=True)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs)[0][:, -1])


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_networks_are_multiplied_without_cudnn(kind):
    torch.manual_seed(0)
    problem = hessfig.Problem(
        Recurrent(kind), torch.randn(5, 6, 3), torch.randint(2, (5,))
    )
    vector = torch.randn(
        sum(p.numel() for p in problem.network.parameters()), dtype=torch.float64
    )
    here, there = (
        problem.operator("all", "H", device=device) for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(
        (there @ vector.cuda()).cpu(), here @ vector, rtol=1e-9, atol=1e-12
    )
    assert torch.backends.cudnn.enabled


@pytest.mark.cuda
@needs_gpu
def test_convolutions_in_float32_are_not_tf32():
    from hessfig.curvature.double_backward import differentiating

    kernel = torch.randn(32, 32, 3, 3, device="cuda")
    pictures = torch.randn(4, 32, 16, 16, device="cuda")
    exact = torch.nn.functional.conv2d(pictures.double(), kernel.double())
    before = torch.backends.cudnn.conv.fp32_precision
    with differentiating():
        off = (
            torch.nn.functional.conv2d(pictures, kernel) - exact
        ).norm() / exact.norm()
    assert float(off) < 1e-6
    assert torch.backends.cudnn.conv.fp32_precision == before


@pytest.mark.cuda
@needs_gpu
def test_long_krylov_vectors_are_on_the_gpu():
    from hessfig.curvature import ColumnOperator, Square, extremes
    from hessfig.curvature.double_backward import differentiating
    from hessfig.curvature.spectral.extremes import End
    from hessfig.rng import stream
    from hessfig.terms import Part

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(300, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5)
    )
    problem = hessfig.Problem(
        network, torch.randn(16, 300), torch.randint(5, (16,))
    ).objective("float32")
    values = []
    for device in ("cpu", "cuda"):
        with differentiating():
            square = Square(
                ColumnOperator(problem.on(torch.device(device)), 0, "all", ["all"]),
                "all",
                Part.H,
            )
            result = extremes(square, End.largest, tolerance=1e-4, generator=stream(0))
        assert result.converged
        assert result.vectors.device.type == device
        assert result.vectors.dtype == torch.float32
        values.append(float(result.values[0]))
    assert values[1] == pytest.approx(values[0], rel=1e-4)
