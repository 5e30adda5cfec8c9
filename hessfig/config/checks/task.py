"""Checks of the task against the network that reads it."""

from __future__ import annotations

from hessfig.config.choices import Data, Kind, Loss
from hessfig.config.schema import Config, TaskConfig
from hessfig.errors import UserError

_SMALLEST_BASE = 2
_DATA_OF: dict[str, Data] = {
    Kind.python: Data.python,
    Kind.self_attention: Data.gaussian,
    Kind.vit: Data.digits,
    Kind.huggingface: Data.tokens,
    Kind.transformer_lens: Data.tokens,
}  # others: addition
_READ = (Data.digits, Data.tokens)


def check_task(config: Config) -> None:
    """Raise UserError for data that the network does not take, and for settings that the data do not have."""
    task, kind = config.task, config.model.kind
    if (task.data == Data.python) != (kind == Kind.python):
        raise UserError(
            "task.data and model.kind do not fit: model.factory makes the data too",
            got=f"task.data={task.data}, model.kind={kind}",
            allowed="python with python",
            remedy="model=python task=python, or sweep=network, which has both",
        )
    data = _DATA_OF.get(kind, Data.addition)
    if task.data != data:
        raise UserError(
            "task.data and model.kind do not fit",
            got=f"task.data={task.data}, model.kind={kind}",
            allowed="gaussian with self_attention; digits with vit; tokens with huggingface, transformer_lens; "
            "addition with transformer, mlp or linear_mlp",
            remedy=f"task={data}",
        )
    if task.base < _SMALLEST_BASE or (task.base != TaskConfig.base and data != Data.addition):
        raise UserError(
            "task.base: the base of the numbers that are added",
            got=f"task.base={task.base}, task.data={data}",
            allowed=f"a whole number >= {_SMALLEST_BASE} with task=addition",
            remedy="task.base=10",
        )
    if task.path is not None and data not in _READ:
        raise UserError(
            "task.path: only pictures and tokens are read from a file",
            got=f"task.data={data}",
            allowed="task=digits, task=tokens",
            remedy="leave task.path out, or model=vit task=digits, or model=huggingface task=tokens",
        )
    if data != Data.tokens and (task.length, task.first_scored) != (
        TaskConfig.length,
        TaskConfig.first_scored,
    ):
        raise UserError(
            "task.length, task.first_scored: only sequences of tokens have them",
            got=f"task.length={task.length}, task.first_scored={task.first_scored}, task.data={data}",
            allowed="with task=tokens",
            remedy="leave them out",
        )
    if data == Data.gaussian and task.loss == Loss.cross_entropy:
        raise UserError(
            "task.loss: Gaussian targets need a square loss",
            got=task.loss,
            allowed="mse, mse_sum_unshifted",
            remedy="task.loss=mse",
        )
