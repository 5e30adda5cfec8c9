"""What other packages offer for Hessians, behind one signature each: products, the largest eigenvalue, densities.

A product takes a network, inputs, targets and the parameters that are differentiated, and returns a function from one
vector a parameter to H v, one tensor a parameter; the loss is the mean cross-entropy of the outputs. For eigenvalues
and densities of the whole network every peer gets the same module: from tokens to the outputs at the scored positions
(its last layer is computed there only), with the same loss and batch, float64, one thread; products are counted where
they are made. hessian-eigenthings and PyHessian come with the extra `bench`, installed without their dependencies:

    pip install --no-deps hessian-eigenthings==1.0.0a5 PyHessian==0.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessfig.curvature.losses import CrossEntropy
from hessfig.curvature.problem import Objective, Suffix

Product = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Make = Callable[[nn.Module, Tensor, Tensor, Sequence[nn.Parameter]], Product]
Density = tuple[np.ndarray, np.ndarray]  # nodes and weights that sum to 1


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all scored positions."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def curvlinops(network: nn.Module, inputs: Tensor, targets: Tensor, parameters: Sequence[nn.Parameter]) -> Product:
    """Multiply by curvlinops.HessianLinearOperator: forward over reverse under vmap."""
    from curvlinops import HessianLinearOperator

    operator = HessianLinearOperator(
        network, CrossEntropy(), list(parameters), [(inputs, targets)], num_data=len(inputs), check_deterministic=False
    )
    return lambda vectors: [one[..., 0] for one in operator @ [vector.unsqueeze(-1) for vector in vectors]]


def pyhessian(network: nn.Module, inputs: Tensor, targets: Tensor, parameters: Sequence[nn.Parameter]) -> Product:
    """Multiply by PyHessian's hessian_vector_product: double backward from a graph that is kept."""
    from pyhessian import hessian, hessian_vector_product

    only(network, parameters)
    found = hessian(network, cross_entropy, data=(inputs, targets), cuda=inputs.is_cuda)
    return reordered(
        parameters, found.params, lambda vectors: hessian_vector_product(found.gradsH, found.params, vectors)
    )


def eigenthings(network: nn.Module, inputs: Tensor, targets: Tensor, parameters: Sequence[nn.Parameter]) -> Product:
    """Multiply by hessian_eigenthings.HessianOperator: double backward, the graph made anew for every product."""
    from hessian_eigenthings.loss_fns import supervised_loss
    from hessian_eigenthings.operators import HessianOperator

    only(network, parameters)
    operator = HessianOperator(network, [(inputs, targets)], supervised_loss(cross_entropy))
    own = [parameter for parameter in network.parameters() if parameter.requires_grad]

    def product(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        flat = operator.matvec(torch.cat([vector.flatten() for vector in vectors]))
        pieces = flat.split([parameter.numel() for parameter in own])
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, own, strict=True)]

    return reordered(parameters, own, product)


def reordered(parameters: Sequence[nn.Parameter], own: Sequence[nn.Parameter], product: Product) -> Product:
    """Return a product that takes and gives the order of `parameters` where the package has its `own`."""
    places = [next(i for i, one in enumerate(parameters) if one is parameter) for parameter in own]

    def multiply(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        found = dict(zip(places, product([vectors[place] for place in places]), strict=True))
        return [found[place] for place in range(len(parameters))]

    return multiply


def only(network: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Let these parameters alone require gradients."""
    network.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_()


@dataclass
class Peer:
    """A way to the largest eigenvalue: `solve(problem, effort)` with rising efforts until the residual is small.

    One that is not `judged` is run once, as its users do, whatever its residual.
    """

    solve: Callable[[Objective, float], tuple[float, Tensor, int]]
    efforts: tuple[float, ...]
    judged: bool = True


def scored_network(objective: Objective) -> nn.Module:
    """Return the network from tokens to scored outputs, its parameters ready to be differentiated."""
    suffix = Suffix(objective, None)
    return suffix.requires_grad_(True)


def exact_product(objective: Objective, vector: Tensor) -> Tensor:
    """Return H v by one plain double backward: the judge of every residual."""
    module = scored_network(objective)
    weights = list(module.parameters())
    loss = objective.loss(module(objective.batch.inputs), objective.batch.targets)
    slopes = torch.autograd.grad(loss, weights, create_graph=True)
    found = torch.autograd.grad(slopes, weights, _split(vector.to(weights[0].device), weights))
    return torch.cat([piece.detach().reshape(-1) for piece in found]).to(vector.device)


def eigsh_on_curvlinops(objective: Objective, tolerance: float) -> tuple[float, Tensor, int]:
    """scipy's implicitly restarted Lanczos with its own number of vectors (20), from a seeded start."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = curvlinops_operator(objective)
    count = [0]

    def product(vector: np.ndarray) -> np.ndarray:
        count[0] += 1
        there = torch.from_numpy(np.ascontiguousarray(vector.reshape(-1))).to(operator.device)
        return (operator @ there).detach().cpu().numpy()

    dim = operator.shape[0]
    start = np.random.default_rng(0).standard_normal(dim)
    whole = LinearOperator((dim, dim), matvec=product, dtype=np.float64)
    values, vectors = eigsh(whole, k=1, which="LA", tol=tolerance, v0=start)
    return float(values[0]), torch.from_numpy(vectors[:, 0].copy()), count[0]


def pyhessian_power(
    objective: Objective, tolerance: float, *, dtype: torch.dtype = torch.float64, most: int = 3000
) -> tuple[float, Tensor, int]:
    """PyHessian's power iteration, stopped when two eigenvalues in a row differ by less than `tolerance`."""
    package: Any = import_module("pyhessian.hessian")  # the package's attribute of this name is its class

    torch.manual_seed(0)
    module, count = scored_network(objective).to(dtype), [0]
    product = package.hessian_vector_product

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        return product(*arguments)

    package.hessian_vector_product = counted
    torch.set_default_dtype(dtype)  # it draws its start in the default type
    try:
        batch = (objective.batch.inputs, objective.batch.targets)
        found = package.hessian(module, objective.loss, data=batch, cuda=batch[0].is_cuda)
        values, vectors = found.eigenvalues(maxIter=most, tol=tolerance, top_n=1)
    finally:
        torch.set_default_dtype(torch.float32)
        package.hessian_vector_product = product
    flat = torch.cat([piece.detach().reshape(-1) for piece in vectors[0]]).double()
    return float(values[0]), flat, count[0]


def eigenthings_lanczos(objective: Objective, steps: float) -> tuple[float, Tensor, int]:
    """hessian-eigenthings' Lanczos of `steps` vectors, all of them kept orthogonal."""
    from hessian_eigenthings import lanczos

    found = lanczos(eigenthings_operator(objective), k=1, max_iter=int(steps), which="LA", seed=0, reorthogonalize=True)
    return float(found.eigenvalues[0]), found.eigenvectors[0], found.iterations


def eigenthings_density(objective: Objective, steps: int, probes: int) -> Density:
    """hessian-eigenthings' stochastic Lanczos quadrature with Rademacher probes."""
    from hessian_eigenthings import spectral_density

    found = spectral_density(
        eigenthings_operator(objective), num_runs=probes, lanczos_steps=steps, seed=0, num_grid_points=2
    )
    weights = found.raw_weights.flatten()
    kept = weights > 0
    return found.raw_eigenvalues.flatten()[kept].numpy(), (weights[kept] / probes).numpy()


def curvlinops_density(objective: Objective, steps: int, probes: int) -> Density:
    """curvlinops' smoothed spectrum on a grid (its Lanczos does not re-orthogonalise)."""
    from curvlinops import lanczos_approximate_spectrum

    operator = curvlinops_operator(objective)
    torch.manual_seed(0)
    grid, density = lanczos_approximate_spectrum(operator, steps, num_points=4096, num_repeats=probes)
    weights = density.clamp(min=0)
    return grid.numpy(), (weights / weights.sum()).numpy()


def pyhessian_density(objective: Objective, steps: int, probes: int) -> Density:
    """PyHessian's stochastic Lanczos quadrature; it calls torch.eig, which torch has no longer."""
    package: Any = import_module("pyhessian.hessian")  # the package's attribute of this name is its class

    torch.set_default_dtype(torch.float64)
    try:
        batch = (objective.batch.inputs, objective.batch.targets)
        found = package.hessian(scored_network(objective), objective.loss, data=batch, cuda=batch[0].is_cuda)
        nodes, weights = found.density(iter=steps, n_v=probes)
    finally:
        torch.set_default_dtype(torch.float32)
    return np.concatenate(nodes), np.concatenate(weights) / probes


def curvlinops_operator(objective: Objective) -> Any:
    """Return the Hessian as curvlinops' operator."""
    from curvlinops import HessianLinearOperator

    module = scored_network(objective)
    data = [(objective.batch.inputs, objective.batch.targets)]
    settings = {"check_deterministic": False, "num_data": len(objective.batch.inputs)}
    return HessianLinearOperator(module, objective.loss, list(module.parameters()), data, **settings)


def eigenthings_operator(objective: Objective) -> Any:
    """Return the Hessian as hessian-eigenthings' operator."""
    from hessian_eigenthings import HessianOperator, supervised_loss

    batches = [(objective.batch.inputs, objective.batch.targets)]
    return HessianOperator(scored_network(objective), batches, supervised_loss(objective.loss))


PRODUCTS: dict[str, Make] = {"curvlinops": curvlinops, "pyhessian": pyhessian, "eigenthings": eigenthings}
LARGEST = {
    "curvlinops + eigsh": Peer(eigsh_on_curvlinops, (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)),
    "PyHessian": Peer(pyhessian_power, tuple(10.0**-power for power in range(3, 13))),
    "PyHessian, as its users run it": Peer(
        partial(pyhessian_power, dtype=torch.float32, most=100), (1e-3,), judged=False
    ),
    "hessian-eigenthings": Peer(eigenthings_lanczos, (10, 15, 20, 30, 40, 60, 80, 120, 160, 240)),
}
DENSITIES: dict[str, Callable[[Objective, int, int], Density]] = {
    "curvlinops": curvlinops_density,
    "PyHessian": pyhessian_density,
    "hessian-eigenthings": eigenthings_density,
}


def _split(vector: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    pieces = vector.split([weight.numel() for weight in weights])
    return [piece.view_as(weight) for piece, weight in zip(pieces, weights, strict=True)]
