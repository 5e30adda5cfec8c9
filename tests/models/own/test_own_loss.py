"""No loss is guessed: labels go through wrappers, and a network's own loss is a known one only if it is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hessfig
from hessfig.errors import UserError
from tests.double_backward import hessian

IDS = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS, "labels": IDS}


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Model(nn.Module):
    """A language model with the manners of transformers: a loss for labels, and logits."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor] = shifted) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.loss_of = nn.Embedding(5, 4).double(), nn.Linear(4, 5).double(), loss

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(torch.tanh(self.embed(input_ids).cumsum(1)))
        return {"logits": logits} if labels is None else {"loss": self.loss_of(logits, labels), "logits": logits}


class Wrapper(nn.Module):
    """Hands on whatever it is given, as adapters and compilers do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *arguments: Any, **words: Any) -> Any:
        return self.inner(*arguments, **words)


class Deaf(Wrapper):
    """Takes labels among other words, and returns logits alone."""

    def forward(self, input_ids: Tensor, **words: Any) -> Tensor:
        return self.inner(input_ids)["logits"]


class Strict(Wrapper):
    """Takes any words, and fails at labels."""

    def forward(self, *arguments: Any, **words: Any) -> Any:
        if "labels" in words:
            raise TypeError("unexpected keyword labels")
        return self.inner(*arguments, **words)["logits"]


class Tupled(Wrapper):
    def forward(self, input_ids: Tensor) -> Tensor:
        return self.inner(input_ids)["logits"]


def numbers(network: nn.Module, **given: Any) -> dict[str, float]:
    problem = hessfig.Problem(network, given.pop("batch", BATCH), **given)
    table = hessfig.measure(problem, blocks=["all"], parts="H", quantities=["loss", "largest_eigenvalue", "frobenius"])
    return dict(zip(table["quantity"], table["value"], strict=True))


def compiled(network: nn.Module) -> nn.Module:
    return torch.compile(network, backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize(
    "wrapped",
    [Wrapper, compiled, lambda network: compiled(Wrapper(network)), lambda network: Wrapper(Wrapper(network))],
)
@pytest.mark.long
def test_wrappers_hand_labels_on(wrapped: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    truth, network = numbers(Model()), Model()
    assert truth["loss"] == pytest.approx(float(network(**BATCH)["loss"]), rel=1e-14)
    assert numbers(wrapped(network)) == pytest.approx(truth, rel=1e-9)
    watching = hessfig.Monitor(wrapped(network), None, BATCH, folder=tmp_path / "mine", quantities=["loss"])
    assert watching(0)["loss"] == pytest.approx(truth["loss"], rel=1e-14)


def test_a_declared_output_does_not_change_whose_loss_it_is() -> None:
    assert numbers(Model(), outputs="logits") == numbers(Model()) == numbers(Wrapper(Model()), outputs="logits")


@pytest.mark.parametrize("network", [Deaf, Strict, Tupled])
@pytest.mark.parametrize("given", [{}, {"targets": "labels"}])
def test_labels_without_a_loss_are_refused(network: Any, given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"labels, and the network returns no loss(.|\n)*loss='cross_entropy'"):
        numbers(network(Model()), **given)
    found = numbers(network(Model()), loss=shifted)
    assert found == pytest.approx(numbers(Model()), rel=1e-9)


def test_a_monitor_refuses_them_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the network returns no loss for them"):
        hessfig.Monitor(Deaf(Model()), None, BATCH, folder=tmp_path / "mine")


def nearly(logits: Tensor, labels: Tensor) -> Tensor:
    return shifted(logits, labels) * (1 + 1e-7)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return shifted(logits, labels) + 1e-6 * logits.logsumexp(-1).square().mean()


def stopped(logits: Tensor, labels: Tensor) -> Tensor:
    """The value of cross-entropy, and half of its gradient."""
    found = shifted(logits, labels)
    return found.detach() / 2 + found / 2


@pytest.mark.parametrize("loss", [nearly, smoothed, stopped])
def test_a_loss_that_is_nearly_a_known_one_is_the_networks_own(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Value and gradient decide: the loss is the network's output then, with H and without a split."""
    network = Model(loss)
    held = [*network.parameters()]
    dense, found = hessian(lambda: network(**BATCH)["loss"], held), numbers(network)
    assert found["loss"] == pytest.approx(float(network(**BATCH)["loss"]), rel=1e-15)
    assert found["largest_eigenvalue"] == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-6)
    words = "taken apart, have other derivatives" if loss is stopped else "the loss is computed inside the network"
    with pytest.raises(UserError, match=words):
        hessfig.measure(hessfig.Problem(network, BATCH), blocks=["all"], parts=["H_o"])


def test_an_own_loss_in_float32_is_compared_in_float32() -> None:
    network = Model(lambda logits, labels: shifted(logits.float(), labels))
    assert numbers(network) == numbers(Model())
