"""Extrapolated differences of gradients whose derivatives are known, from good and bad first steps."""

import threading

import pytest
import torch

from hessfig.curvature.richardson import (
    Differenced,
    Quotient,
    extrapolated,
    first_step,
    length,
    moved_weights,
    product_by_differences,
)
from tests.daily import thinned

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}
WEIGHTS = torch.linspace(-1.0, 2.0, 40, dtype=torch.float64)
VECTORS = {
    "signs": torch.tensor([1.0, -1.0] * 20).double(),
    "one entry": torch.eye(40)[33].double(),
    "few entries": torch.eye(40)[30:34].double().sum(dim=0),
    "long": 1e6 * torch.linspace(1.0, 2.0, 40).double(),
    "short": 1e-6 * torch.linspace(1.0, 2.0, 40).double(),
}


def wave(weights):
    """The gradient of a sum of entries, and of products of neighbours, of exp(sin(5 w))."""
    (w,) = weights
    at = w.detach().clone().requires_grad_()
    with torch.enable_grad():
        inside = (5 * at).sin().exp()
        return list(torch.autograd.grad((inside + inside * inside.roll(1)).sum(), at))


def truth(vector):
    at = WEIGHTS.clone().requires_grad_()
    inside = (5 * at).sin().exp()
    (gradient,) = torch.autograd.grad(
        (inside + inside * inside.roll(1)).sum(), at, create_graph=True
    )
    return torch.autograd.grad(gradient, at, vector)[0]


def found(vector, dtype, *, far=1.0):
    """Return the product with a first step that is `far` times that of the rule."""
    weights = [WEIGHTS.to(dtype)]
    along = [vector.to(dtype)]
    ratio = moved_weights(weights, along)

    def quotient(step):
        plus, minus = (
            wave([weights[0] + sign * step * along[0]])[0] for sign in (1, -1)
        )
        difference = (plus - minus) / (2 * step)
        size = (plus.abs() + minus.abs()) / 2
        return Quotient([difference], [size + ratio * difference.abs()])

    return extrapolated(
        quotient, far * first_step(weights, along, unit=UNIT[dtype]), unit=UNIT[dtype]
    )


def off(one, vector):
    """Return the true and the stated error, relative to the product."""
    right = truth(vector)
    return float((one.product[0].double() - right).norm() / right.norm()), length(
        one.deviation
    ) / float(right.norm())


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("name", thinned(VECTORS, 2))
def test_the_stated_error_is_small_and_covers_the_true_one(name, dtype):
    true, stated = off(found(VECTORS[name], dtype), VECTORS[name])
    assert true <= stated <= 2.5 * UNIT[dtype] ** 0.5


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("name", thinned(VECTORS, 2))
@pytest.mark.parametrize("far", thinned([2.0**-16, 2.0**-8, 2.0**4, 2.0**7], 2))
def test_a_bad_first_step_is_left_or_its_error_is_stated(name, dtype, far):
    true, stated = off(found(VECTORS[name], dtype, far=far), VECTORS[name])
    assert true <= stated
    assert stated <= 1e-3 or dtype == torch.float32


def test_an_accurate_product_takes_four_gradients_and_none_more_than_24():
    assert found(VECTORS["signs"], torch.float64).gradients == 4
    for far in (1e-9, 1.0, 1e9):
        assert found(VECTORS["signs"], torch.float32, far=far).gradients <= 24


def test_steps_that_saturate_the_gradient_are_no_rounding():
    """Beyond saturation differences fall as 1 / h, as those of rounding do."""
    weights = torch.full((8,), 1e-4, dtype=torch.float64)

    def gradient(at):
        return [(1e6 * at[0]).tanh()]

    product, deviation, _ = product_by_differences(
        gradient, [1e8 * weights], [weights], unit=UNIT[torch.float64]
    )
    assert length(product) <= length(deviation)  # tanh is constant there
    at_zero = product_by_differences(
        gradient, [0 * weights], [weights], unit=UNIT[torch.float64]
    )
    assert abs(float(at_zero.product[0][0]) - 100.0) <= length(at_zero.deviation)


def test_nothing_but_rounding_has_an_error_as_large_as_itself():
    def gradient(at):
        return [torch.ones_like(at[0]) + 1e-7 * (1e9 * at[0]).sin()]

    product, deviation, _ = product_by_differences(
        gradient, [WEIGHTS], [VECTORS["signs"]], unit=UNIT[torch.float32]
    )
    assert length(product) <= length(deviation)


def test_a_gradient_that_does_not_change_has_the_roundoff_as_error():
    product, deviation, gradients = product_by_differences(
        lambda at: [torch.ones_like(at[0])],
        [WEIGHTS],
        [VECTORS["signs"]],
        unit=UNIT[torch.float64],
    )
    assert (length(product), gradients) == (0.0, 4)
    assert 0 < length(deviation) < 1e-9


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_product_that_is_not_finite_is_not_hidden(number):
    product, _, _ = product_by_differences(
        lambda at: [at[0] ** 3 + number],
        [WEIGHTS],
        [VECTORS["signs"]],
        unit=UNIT[torch.float64],
    )
    assert not bool(product[0].isfinite().any())


def test_shards_take_the_steps_of_the_whole():
    """Only `length` needs all shards; here two threads stand for two ranks."""
    barrier = threading.Barrier(2)
    sums = [0.0, 0.0]
    results = dict[int, Differenced]()

    def rank(number, gradient):
        def of_all(tensors):
            sums[number] = length(tensors) ** 2
            barrier.wait(30)
            total = sum(sums) ** 0.5
            barrier.wait(30)
            return total

        shard = slice(20 * number, 20 * number + 20)
        weights = [WEIGHTS[shard]]
        vector = [VECTORS["few entries"][shard]]
        results[number] = product_by_differences(
            gradient, weights, vector, unit=UNIT[torch.float64], length=of_all
        )

    def cubes(at):
        return [at[0] ** 3]

    threads = [
        threading.Thread(target=rank, args=(number, cubes)) for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 2
    whole = product_by_differences(
        cubes, [WEIGHTS], [VECTORS["few entries"]], unit=UNIT[torch.float64]
    )
    together = torch.cat([results[number].product[0] for number in range(2)])
    assert length([together - whole.product[0]]) <= length(whole.deviation)


def test_rounding_that_looks_like_truncation_does_not_end_the_search():
    """By chance |D_2h - D_4h| > |D_h - D_2h| in rounding, too; shorter steps are worse then, and longer ones right."""
    unit = UNIT[torch.float32]
    errors = []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)

        def quotient(step, generator=generator):
            size = torch.full((2,), 50.0).double()
            rounding = unit * size / step * torch.randn(2, generator=generator).double()
            return Quotient([torch.ones(2).double() + rounding], [size])

        one = extrapolated(quotient, 1e-3, unit=unit)
        assert one.gradients <= 24
        errors.append(length(one.deviation) / length(one.product))
    assert max(errors) <= 2.0 * unit**0.5
