"""Rules that divide by a curvature matrix, and those of libraries: steps against formulas on dense matrices."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.func import functional_call

from hessfig.config.checks import check_training
from hessfig.config.enums import DType, Norm
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.problem import scored_outputs
from hessfig.errors import UserError
from hessfig.states.initialised import initialised
from hessfig.states.training import loop
from hessfig.states.training.checkpoints import Folder
from hessfig.states.training.loop import ensure
from hessfig.states.training.second_order import (
    BatchLoss,
    _damped,
    dense_hessian,
    products_of_a_solver,
    solver,
)
from hessfig.states.training.step_rules import StepRule
from hessfig.states.training.trajectory import Trajectory
from hessfig.terms import Optimiser
from tests.daily import thinned
from tests.double_backward import hessian, jacobian
from tests.draws import draws
from tests.tensors import flat
from tests.toys import training_config

DIVIDING = [one for one in Optimiser if one.facts.divides]
NEW = (*DIVIDING, Optimiser.shampoo, Optimiser.soap, Optimiser.muon)
DAMPING = 0.3


def of_network(norm=Norm.none):
    """Return the loss of a small transformer on five one-digit sums in base 3, in float64."""
    model = ModelConfig(d_model=4, d_mlp=3, n_heads=2, norm=norm)
    task = TaskConfig(digits=1, base=3, batch_size=5)
    drawn = initialised(
        Config(model=model, task=task, dtype=DType.float64), sigma=0.7, seed=1
    )
    return BatchLoss(drawn.network.requires_grad_(True), drawn.loss, drawn.batch)


def split(loss, entries):
    """Return the entries by the names of their parameters."""
    found = {}
    for name, one in loss.network.named_parameters():
        piece, entries = entries[: one.numel()], entries[one.numel() :]
        found[name] = piece.view_as(one)
    return found


class Scored(nn.Module):
    """A network at its scored positions."""

    def __init__(self, loss):
        super().__init__()
        self.network, self.batch = loss.network, loss.batch

    def forward(self):
        return scored_outputs(self.network, self.batch.inputs, self.batch.scored)


def outputs_at(loss, entries):
    inside = {f"network.{name}": one for name, one in split(loss, entries).items()}
    return functional_call(Scored(loss), inside, ())


def flat_of(loss):
    return flat(loss.network.parameters()).detach()


def gradient_of(loss):
    at = list(loss.network.parameters())
    return flat(torch.autograd.grad(loss(), at, materialize_grads=True))


def oracle_hessian(loss):
    """Return the Hessian by double backward."""
    at = flat_of(loss).requires_grad_()
    return hessian(lambda: loss.of(outputs_at(loss, at)), [at])


def oracle_gauss_newton(loss):
    """Return the mean over rows of J^T (diag(p) - p p^T) J."""
    at = flat_of(loss).requires_grad_()
    outputs = outputs_at(loss, at)
    rows = jacobian(lambda: outputs_at(loss, at), [at]).view(
        -1, outputs.shape[-1], len(at)
    )
    chances = outputs.detach().softmax(-1).flatten(0, -2)
    middle = chances.diag_embed() - chances[:, :, None] * chances[:, None]
    return torch.einsum("kvn,kvw,kwm->nm", rows, middle, rows) / len(rows)


def damped(matrix):
    return matrix + DAMPING * torch.eye(len(matrix), dtype=matrix.dtype)


def steps_of(kind, loss):
    parameters = list(loss.network.parameters())
    slopes = list(torch.autograd.grad(loss(), parameters, materialize_grads=True))
    return split(loss, flat(solver(kind, loss, DAMPING)(slopes)))


def assert_close(found, expected):
    assert set(found) == set(expected)
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=1e-10, atol=1e-10), name


@pytest.mark.parametrize("norm", [Norm.none, Norm.pre])
def test_newton_divides_by_the_modulus_of_the_hessian(norm):
    loss = of_network(norm)
    hessian = oracle_hessian(loss)
    assert torch.allclose(dense_hessian(loss), hessian, rtol=0, atol=1e-10)
    assert float(torch.linalg.eigvalsh(hessian)[0]) < -1e-3, (
        "else |H| is H, and nothing is tested"
    )
    modulus = torch.linalg.svd(hessian)
    expected = torch.linalg.solve(
        damped(modulus.Vh.T @ (modulus.S[:, None] * modulus.Vh)), gradient_of(loss)
    )
    assert_close(steps_of(Optimiser.newton, loss), split(loss, expected))


@pytest.mark.parametrize("norm", [Norm.none, Norm.pre])
def test_gauss_newton_whole_and_by_blocks(norm):
    loss = of_network(norm)
    whole = oracle_gauss_newton(loss)
    slope = gradient_of(loss)
    assert_close(
        steps_of(Optimiser.gauss_newton, loss),
        split(loss, torch.linalg.solve(damped(whole), slope)),
    )
    parameters = enumerate(loss.network.parameters())
    owner = flat(torch.full_like(one, k) for k, one in parameters)
    blocks = whole * (owner[:, None] == owner)
    found = steps_of(Optimiser.block_gauss_newton, loss)
    assert_close(found, split(loss, torch.linalg.solve(damped(blocks), slope)))


def test_kfac_divides_by_kronecker_products():
    """Sample by sample, position by position and class by class, with the Kronecker products written out."""
    loss = of_network()
    found = steps_of(Optimiser.kfac, loss)
    slopes = split(loss, gradient_of(loss))
    whole = oracle_gauss_newton(loss)
    expected = {}
    for place, module in loss.network.named_modules():
        if isinstance(module, nn.Linear):
            left, right = oracle_factors(loss, module)
            joint = torch.cat(
                [slopes[f"{place}.weight"], slopes[f"{place}.bias"][:, None]], dim=1
            )
            solved = torch.linalg.solve(
                damped(torch.kron(left, right)), joint.flatten()
            ).view_as(joint)
            expected |= {
                f"{place}.weight": solved[:, :-1],
                f"{place}.bias": solved[:, -1],
            }
    left, right = oracle_factors(loss, loss.network.tok_embed)
    joint = slopes["tok_embed.weight"].T
    solved = torch.linalg.solve(
        damped(torch.kron(left, right)), joint.flatten()
    ).view_as(joint)
    expected["tok_embed.weight"] = solved.T
    owner = flat(
        torch.full(one.shape, name == "pos.weight") for name, one in slopes.items()
    )
    block = whole[owner][:, owner]
    expected["pos.weight"] = torch.linalg.solve(
        damped(block), slopes["pos.weight"].flatten()
    ).view_as(found["pos.weight"])
    assert_close(found, expected)


def oracle_factors(loss, module):
    seen = []
    handle = module.register_forward_hook(
        lambda _, given, output: seen.append((given[0], output))
    )
    outputs = loss.outputs()
    handle.remove()
    ((given, inner),) = seen
    if isinstance(module, nn.Embedding):
        inputs = (
            nn.functional.one_hot(given, module.num_embeddings).double().flatten(0, 1)
        )
    else:
        inputs = torch.cat(
            [
                given.detach().flatten(0, 1),
                torch.ones(given.shape[:2].numel(), 1).double(),
            ],
            dim=1,
        )
    left = torch.zeros(inner.shape[-1], inner.shape[-1]).double()
    terms = outputs.shape[:-1].numel()
    for sample in range(len(outputs)):
        for position in range(outputs.shape[1]):
            chances = outputs[sample, position].detach().softmax(-1)
            root = torch.diag(chances.sqrt()) - chances[:, None] * chances.sqrt()
            for column in root.T:
                (sent,) = torch.autograd.grad(
                    outputs[sample, position] @ column, inner, retain_graph=True
                )
                left += sent.flatten(0, -2).T @ sent.flatten(0, -2) / terms
    return left, inputs.T @ inputs / len(inputs)


def test_products_of_a_curvature_matrix():
    loss = of_network()
    count = sum(one.numel() for one in loss.network.parameters())
    assert products_of_a_solver(Optimiser.newton, loss) == count
    positions_and_classes = 2 * 5  # of the answer's two digits in base 3
    assert (
        products_of_a_solver(Optimiser.kfac, loss)
        == positions_and_classes + loss.network.pos.weight.numel()
    )


def test_libraries_make_the_published_steps():
    """Shampoo's first step, SOAP's second (its first only fills the factors), and Muon's first."""
    first = draws(3, 4, seed=1)
    second = draws(3, 4, seed=2)
    assert torch.allclose(
        moved(Optimiser.shampoo, [first]), shampoo(first), rtol=0, atol=1e-10
    )
    assert torch.allclose(
        moved(Optimiser.soap, [first, second]), soap(first, second), rtol=0, atol=1e-10
    )
    sizes = torch.linalg.svdvals(moved(Optimiser.muon, [first]) / (0.2 * 4**0.5))
    # Orthogonal but for the quintic's own error.
    assert float(sizes.min()) > 0.6
    assert float(sizes.max()) < 1.3


def moved(kind, slopes):
    """Return by how much a matrix is lowered by steps of rate 1 along given gradients."""
    network = nn.Linear(4, 3, bias=False).double()
    start = network.weight.detach().clone()
    training = training_config(
        "", optimiser=kind, learning_rate=1.0, weight_decay=0.0, warmup=0
    ).training
    rule = StepRule(
        network, replace(training, schedule="constant", betas=[0.9, 0.95], eps=1e-12)
    )
    for step, slope in enumerate(slopes, start=1):
        network.weight.grad = slope.clone()
        rule.update(step)
    return start - network.weight.detach()


def shampoo(slope):
    def root(matrix):
        values, vectors = torch.linalg.eigh(
            matrix + 1e-6 * torch.eye(len(matrix), dtype=matrix.dtype)
        )
        return (vectors * values**-0.25) @ vectors.T

    return root(slope @ slope.T) @ slope @ root(slope.T @ slope)


def soap(first, second):
    """Adam's first step in the eigenbases of G G^T and G^T G of the gradient before, which is sign(Q_L^T G Q_R)."""
    left = torch.linalg.eigh(first @ first.T).eigenvectors
    right = torch.linalg.eigh(first.T @ first).eigenvectors
    return left @ (left.T @ second @ right).sign() @ right.T


def run_of(folder, kind, **settings):
    task = TaskConfig(digits=1, base=3, batch_size=6)
    config = training_config(
        folder, task=task, optimiser=kind, data="fixed", **settings
    )
    return Trajectory(
        replace(config, training=replace(config.training, dtype=DType.float64)), 0.3, 1
    )


@pytest.mark.parametrize("kind", NEW)
@pytest.mark.long
def test_the_same_bits_after_stops(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    one = run_of(tmp_path / "one", kind, refresh=4, momentum=0.5)
    other = run_of(tmp_path / "other", kind, refresh=4, momentum=0.5)
    ensure(one, [13])
    for stop in range(1, 14):
        ensure(other, [stop])
    for name in ("step_000013.safetensors", "step_000013.optimiser.safetensors"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    held = load_file(Folder(one).optimiser_path(13))
    kept = {key.partition("/")[0].partition(".")[0] for key in held}
    assert set(kind.facts.moments) <= kept


def test_a_clipped_gradient_has_the_norm_that_is_asked_for(tmp_path):
    settings = {
        "weight_decay": 0.0,
        "warmup": 0,
        "schedule": "constant",
        "learning_rate": 0.5,
    }
    lengths = []
    for folder, clip in (("one", 0.01), ("other", 0.0)):
        run = run_of(tmp_path / folder, Optimiser.gd, clip_norm=clip, **settings)
        ensure(run, [0, 1])
        before = load_file(Folder(run).weights_path(0))
        after = load_file(Folder(run).weights_path(1))
        moves = flat(after[name] - before[name] for name in after)
        lengths.append(float(moves.norm()))
    assert lengths[0] == pytest.approx(0.005, rel=1e-4)
    assert lengths[1] > 0.01


def test_settings_of_a_rule_are_in_its_key_alone(tmp_path):
    def key(kind, **settings):
        return run_of(tmp_path, kind, **settings).key

    assert key(Optimiser.newton, damping=1.0) != key(Optimiser.newton)
    assert key(Optimiser.newton, refresh=3) != key(Optimiser.newton)
    assert key(Optimiser.adamw, damping=1.0, refresh=3) == key(Optimiser.adamw)
    assert key(Optimiser.gd, clip_norm=1.0) != key(Optimiser.gd)


def test_rules_that_cannot_be_trained_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="newton is full batch"):
        check_training(training_config(tmp_path, optimiser=Optimiser.newton))
    with pytest.raises(UserError, match="kfac has no learning rate"):
        check_training(
            training_config(
                tmp_path, optimiser=Optimiser.kfac, data="fixed", curvature="whole"
            )
        )
    monkeypatch.setattr("hessfig.config.checks.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pytorch-optimizer"):
        check_training(training_config(tmp_path, optimiser=Optimiser.soap))


def test_a_curvature_beside_which_the_damping_is_lost_gives_steps_that_are_not_finite():
    matrix = 1e20 * torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    assert bool(
        _damped(matrix, DAMPING)([torch.ones(2, dtype=torch.float64)])[0].isnan().all()
    )
    torch.testing.assert_close(
        _damped(matrix / 1e20, 1.0)([torch.ones(2).double()])[0],
        torch.full((2,), 1 / 3).double(),
    )


@pytest.mark.parametrize("kind", thinned(DIVIDING, 2))
def test_a_curvature_that_is_not_finite_gives_steps_that_are_not_finite(kind):
    loss = of_network()
    with torch.no_grad():
        next(loss.network.parameters()).fill_(1e200)
    slopes = [torch.ones_like(one) for one in loss.network.parameters()]
    found = flat(solver(kind, loss, DAMPING)(slopes))
    assert bool(found.isnan().any())
