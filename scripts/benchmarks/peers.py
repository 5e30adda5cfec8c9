"""Products of the Hessian by other packages, behind one signature.

A product takes a network, inputs, targets and the parameters that are differentiated,
and returns a function from one vector per parameter to H v, one tensor per parameter;
the loss is the mean cross-entropy of the outputs. hessian-eigenthings and PyHessian
come with the extra `bench`, installed without their dependencies:

    pip install --no-deps hessian-eigenthings==1.0.0a5 PyHessian==0.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hessfig.curvature.losses import CrossEntropy

Product = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Make = Callable[[nn.Module, Tensor, Tensor, Sequence[nn.Parameter]], Product]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all scored positions."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def curvlinops(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    parameters: Sequence[nn.Parameter],
) -> Product:
    """Multiply by curvlinops.HessianLinearOperator: forward over reverse under vmap."""
    from curvlinops import HessianLinearOperator

    operator = HessianLinearOperator(
        network,
        CrossEntropy(),
        list(parameters),
        [(inputs, targets)],
        num_data=len(inputs),
        check_deterministic=False,
    )
    return lambda vectors: [
        one[..., 0] for one in operator @ [vector.unsqueeze(-1) for vector in vectors]
    ]


def pyhessian(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    parameters: Sequence[nn.Parameter],
) -> Product:
    """Multiply by PyHessian's hessian_vector_product: double backward from a graph that is kept."""
    from pyhessian import hessian, hessian_vector_product

    only(network, parameters)
    found = hessian(network, cross_entropy, data=(inputs, targets), cuda=inputs.is_cuda)
    return reordered(
        parameters,
        found.params,
        lambda vectors: hessian_vector_product(found.gradsH, found.params, vectors),
    )


def eigenthings(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    parameters: Sequence[nn.Parameter],
) -> Product:
    """Multiply by hessian_eigenthings.HessianOperator: double backward, the graph made anew for every product."""
    from hessian_eigenthings.loss_fns import supervised_loss
    from hessian_eigenthings.operators import HessianOperator

    only(network, parameters)
    operator = HessianOperator(
        network, [(inputs, targets)], supervised_loss(cross_entropy)
    )
    own = [parameter for parameter in network.parameters() if parameter.requires_grad]

    def product(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        flat = operator.matvec(torch.cat([vector.flatten() for vector in vectors]))
        pieces = flat.split([parameter.numel() for parameter in own])
        return [
            piece.view(parameter.shape)
            for piece, parameter in zip(pieces, own, strict=True)
        ]

    return reordered(parameters, own, product)


def reordered(
    parameters: Sequence[nn.Parameter], own: Sequence[nn.Parameter], product: Product
) -> Product:
    """Return a product that takes and gives the order of `parameters` where the package has its `own`."""
    places = [
        next(i for i, one in enumerate(parameters) if one is parameter)
        for parameter in own
    ]

    def multiply(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        found = dict(
            zip(places, product([vectors[place] for place in places]), strict=True)
        )
        return [found[place] for place in range(len(parameters))]

    return multiply


def only(network: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Let these parameters alone require gradients."""
    network.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_()


PRODUCTS: dict[str, Make] = {
    "curvlinops": curvlinops,
    "pyhessian": pyhessian,
    "eigenthings": eigenthings,
}
