"""Block norms at a checkpoint, computed again in plain torch: from the file alone, with nothing of hessfig's inside."""

import hashlib
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from hessfig.config.enums import DType, Norm
from hessfig.config.science import TaskConfig
from hessfig.states.training.checkpoints import Folder
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from tests.toys import training_config

DIGITS = 2
SUMS = 6
HEADS = 2
STEP = 25
TASK_SEED = 2


def measured_sums():
    """Draw the task's batch (task.seed 2) from its named stream, as docs and sources describe it."""
    words = repr((TASK_SEED, repr("task"), repr("addition"))).encode()
    seed = int.from_bytes(hashlib.sha256(words).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, 10, (SUMS, DIGITS), generator=generator) for _ in range(2))
    # This batch is not an enriched one.
    assert int(torch.randint(0, 5, (), generator=generator)) != 0
    total = (x * torch.tensor([10, 1])).sum(1) + (y * torch.tensor([10, 1])).sum(1)
    answer = torch.stack([total // 100, total // 10 % 10, total % 10], dim=1)
    signs = torch.tensor([[10], [11]]).expand(2, SUMS)[..., None]
    return torch.cat([x, signs[0], y, signs[1], answer], dim=1)


def loss(w, tokens):
    """Return the mean cross-entropy of the answer's digits, of one pre-LN layer with causal attention."""

    def norm(h, name):
        centred = h - h.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(h, name):
        return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    length = tokens.shape[1]
    answer = slice(2 * DIGITS + 1, 3 * DIGITS + 2)
    h = w["tok_embed.weight"][tokens] + w["pos.weight"][:length]
    x = norm(h, "layers.0.ln1")
    q, k, v = (
        linear(x, f"layers.0.attn.{one}")
        .reshape(SUMS, length, HEADS, -1)
        .transpose(1, 2)
        for one in "qkv"
    )
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    later = torch.ones(length, length).triu(1).bool()
    mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
    h = h + linear(mixed.transpose(1, 2).reshape(SUMS, length, -1), "layers.0.attn.o")
    h = h + linear(
        linear(norm(h, "layers.0.ln2"), "layers.0.mlp.fc_in").relu(),
        "layers.0.mlp.fc_out",
    )
    logits = linear(norm(h, "ln_out"), "head")[:, answer]
    right = tokens[:, answer.start + 1 : answer.stop + 1]
    return -logits.log_softmax(-1).gather(-1, right[..., None]).mean()


PATHS = {
    "W_V": "layers.0.attn.v.weight",
    "W_Q": "layers.0.attn.q.weight",
    "W_in": "layers.0.mlp.fc_in.weight",
}


def test_block_norms_and_eigenvalues_at_a_checkpoint_are_those_of_plain_torch(tmp_path):
    asked = ["frobenius", "largest_eigenvalue", "loss"]
    config = training_config(
        tmp_path, step=STEP, blocks=list(PATHS), quantities=asked, dtype=DType.float64
    )
    config = replace(
        config, task=TaskConfig(digits=DIGITS, batch_size=SUMS, seed=TASK_SEED)
    )
    config = replace(config, model=replace(config.model, norm=Norm.pre))
    found = {
        (row["quantity"], row["col"]): row["value"]
        for name in asked
        for row in compute_cell(Cell(Variant("", config), 0.3, 1, name, {}, STEP)).rows
        if row["part"] in ("H", "")
    }
    file = Folder(Trajectory(config, 0.3, 1)).weights_path(STEP)
    weights = {name: tensor.double() for name, tensor in load_file(file).items()}
    tokens = measured_sums()
    assert found["loss", ""] == pytest.approx(float(loss(weights, tokens)), rel=1e-12)
    for weight, path in PATHS.items():

        def of(at, path=path):
            return loss({**weights, path: at}, tokens)

        hessian = torch.autograd.functional.hessian(of, weights[path])
        matrix = hessian.reshape(weights[path].numel(), -1)
        assert found["frobenius", weight] == pytest.approx(
            float(matrix.norm()), rel=1e-8
        )
        largest = float(torch.linalg.eigvalsh(matrix)[-1])
        assert found["largest_eigenvalue", weight] == pytest.approx(largest, rel=1e-8)
