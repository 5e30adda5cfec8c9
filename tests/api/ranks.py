"""Networks that several processes share: `python -m tests.api.ranks FOLDER SIZE=CASE,CASE... ...` runs cases.

The processes are forked from one that has imported what they use.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import sys
import time
import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import hessfig
import hessfig.api.sharded

QUANTITIES = [
    "frobenius",
    "trace",
    "largest_eigenvalue",
    "smallest_eigenvalue",
    "density",
]
VOCABULARY = 7
NETWORKS = [
    "mlp:layers",
    "mlp:root",
    "mlp:tensor",
    "mlp:part",
    "tied:layers",
    "tied:root",
    "scalar:tensor",
    "scalar:root",
    "encoder:layers",
    "gpt2:layers",
    "llama:root",
    "llama:tensor",
    "mixtral:layers",
    "experts:layers",
    "experts:tensor",
]


class Tied(nn.Module):
    """An embedding that is the output layer too, a frozen layer and a LayerNorm."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.norm, self.head = nn.LayerNorm(5), nn.Linear(5, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.norm(torch.tanh(self.frozen(self.table(tokens)))))


class Scaled(nn.Sequential):
    """A network whose outputs are multiplied by one number, which is a parameter of one entry, or of shape ()."""

    def __init__(self, shape):
        super().__init__(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, VOCABULARY))
        self.scale = nn.Parameter(torch.full(shape, 1.5))

    def forward(self, inputs):
        return self.scale * super().forward(inputs)


class Experts(nn.Module):
    """A layer of ReLUs, and three experts; see `put_near_a_jump`."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 5)
        self.gate = nn.Linear(5, 3)
        self.experts = nn.ModuleList(nn.Linear(5, VOCABULARY) for _ in range(3))

    def forward(self, inputs):
        inside = self.second(self.first(inputs).relu())
        share, chosen = self.gate(inside).softmax(-1).max(-1, keepdim=True)
        every = torch.stack([expert(inside) for expert in self.experts], dim=1)
        place = chosen[..., None].expand(-1, 1, VOCABULARY)
        return share * every.gather(1, place).squeeze(1)

    @torch.no_grad()
    def put_near_a_jump(self, inputs):
        """Put the first sample near a kink, and near a tie of two experts: nearer than any step."""
        self.first.bias[0] += 1e-12 - self.first(inputs)[0, 0]
        shares = self.gate(self.second(self.first(inputs).relu()))[0]
        (best, other), (_, place) = shares.topk(2)
        self.gate.bias[place] += best - other - 1e-12


def mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, VOCABULARY))


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    return nn.Sequential(nn.Embedding(VOCABULARY, 8), layer, nn.Linear(8, VOCABULARY))


def gpt2():
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=2, n_head=2
        )
    )


_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
}


def llama():
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES, **heads))


def mixtral():
    import transformers

    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3}
    config = transformers.MixtralConfig(
        **_SIZES, **heads, experts_implementation="eager"
    )
    return transformers.MixtralForCausalLM(config)


def network(kind, how="layers", dtype=torch.float64):
    """Return a network with the same weights in every process."""
    torch.manual_seed(3)
    if kind == "scalar":
        made = Scaled(() if how == "tensor" else (1,))
    else:
        made = {
            "mlp": mlp,
            "tied": Tied,
            "encoder": encoder,
            "gpt2": gpt2,
            "llama": llama,
            "mixtral": mixtral,
            "experts": Experts,
        }[kind]()
    made.to(dtype).eval()
    if isinstance(made, Experts):
        made.put_near_a_jump(batches(kind, 0, dtype)[0][0])
    return made


def batches(kind, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    is_dense = kind in ("mlp", "scalar", "experts")
    size = (4,) if is_dense or kind == "tied" else (2, 5)
    words = torch.randint(VOCABULARY, (2, 2, *size), generator=generator)
    inputs = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64).to(dtype)
    return [(inputs[at] if is_dense else words[at, 0], words[at, 1]) for at in range(2)]


def outputs_of(net, batch):
    outputs = net(batch[0])
    return getattr(outputs, "logits", outputs)


def loss_of(outputs, batch):
    return nn.functional.cross_entropy(outputs.flatten(0, -2), batch[1].flatten())


def loss(net, batch):
    return loss_of(outputs_of(net, batch), batch)


SPLIT = {"compute_outputs": outputs_of, "compute_loss": loss_of}


def sharded(net, how="layers"):
    """Shard a network over all ranks: by layer, at the root alone, in part, by tensor parallelism, or in bfloat16."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    if how == "tensor":
        return parallelize_module(net, mesh, _columns_and_rows(net))
    policy = {}
    if how == "bfloat16":
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in _layers(net) if how != "root" else []:
        fully_shard(layer, mesh=mesh, **policy)
        if how == "part":
            return net
    fully_shard(net, mesh=mesh, **policy)
    return net


def _columns_and_rows(net):
    """Return how tensor parallelism cuts the matrices of a network."""
    if isinstance(net, Experts):
        # The ReLUs are those of a DTensor.
        wide = ColwiseParallel(use_local_output=False)
        return {"first": wide, "second": RowwiseParallel()}
    if not hasattr(net, "model"):
        return {"0": ColwiseParallel(), "2": RowwiseParallel()}
    wide = (
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj mlp.gate_proj mlp.up_proj"
    )
    plan = {f"model.layers.*.{name}": ColwiseParallel() for name in wide.split()}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"model.layers.*.{name}"] = RowwiseParallel()
    return plan


def _layers(net):
    if isinstance(net, nn.Sequential):
        return [net[0], net[2]]
    if isinstance(net, Tied):
        return [net.norm]
    if isinstance(net, Experts):
        return [*net.experts]
    return [*(net.model.layers if hasattr(net, "model") else net.transformer.h)]


def problem(kind, how="layers", dtype=torch.float64, **more):
    net = sharded(network(kind, how, dtype), how)
    return hessfig.Problem(
        net, batches(kind, 0, dtype), **{"compute_loss": loss, **more}
    )


def vector_of(net):
    """Return a vector in the parameters that are trained."""
    generator = torch.Generator().manual_seed(5)
    named = {name: one for name, one in net.named_parameters() if one.requires_grad}
    return {
        name: torch.randn(one.shape, generator=generator, dtype=torch.float64)
        for name, one in named.items()
    }


def whole(tensor):
    return (
        (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor)
        .detach()
        .clone()
    )


def products(kind, how, part="H", dtype="float64"):
    own = problem(kind, how, getattr(torch, dtype), **SPLIT if part != "H" else {})
    named = dict(own.network.named_parameters())
    before = {name: whole(one) for name, one in named.items()}
    vector = {}
    for name, one in vector_of(network(kind, how)).items():
        like = named[name]
        vector[name] = one.to(like.dtype)
        if hasattr(like, "placements"):
            vector[name] = distribute_tensor(
                vector[name], like.device_mesh, like.placements
            )
    operator = own.operator("all", part)
    product = {name: whole(one).tolist() for name, one in (operator @ vector).items()}
    assert all(torch.equal(one, whole(named[name])) for name, one in before.items())
    assert all(one.grad is None for one in named.values())
    return {"product": product, "error": operator.last_error}


def table(kind, how, *blocks):
    spectrum = {"steps": 30, "num_probes": 4, "tolerance": 1e-6}
    own = problem(kind, how, **SPLIT)
    frame = hessfig.measure(
        own, blocks=[*blocks], quantities=QUANTITIES, num_probes=6, spectrum=spectrum
    )
    return {
        "rows": frame[["row", "part", "quantity", "value", "error", "status"]]
        .to_numpy()
        .tolist()
    }


def monitored(kind, how, *, measures=True):
    """Train a network for four steps, measured at every second; return what the monitor said, and the last weights."""
    own = sharded(network(kind, how), how).train()
    arrived = []  # as an optimiser that steps when a gradient arrives
    next(own.parameters()).register_post_accumulate_grad_hook(arrived.append)
    optimiser = torch.optim.SGD(own.parameters(), 0.1, momentum=0.9)
    folder = (
        Path(os.environ["RANKS_FOLDER"])
        / f"monitor-{kind}-{distributed.get_world_size()}"
    )
    wanted = {
        "quantities": ["loss", "gradient_norm", "largest_eigenvalue"],
        "spectrum": {"steps": 20, "tolerance": 1e-2},
        "max_fraction": None,
        "every": 2,
        "on_error": "raise",
    }
    monitor = (
        hessfig.Monitor(own, batches(kind), compute_loss=loss, folder=folder, **wanted)
        if measures
        else None
    )
    seen = []
    for step in range(4):
        optimiser.zero_grad()
        for batch in batches(kind):
            loss(own, batch).backward()
        seen.append(monitor(step) if monitor else {})
        assert own.training
        assert len(arrived) == (step + 1) * len(batches(kind))
        optimiser.step()
    if monitor:
        monitor.close()
    return seen, torch.cat([whole(one).flatten() for one in own.parameters()]).tolist()


def monitor(kind, how):
    seen, weights = monitored(kind, how)
    again, _ = monitored(kind, how)  # a restart reads what is in the folder
    _, plain = monitored(kind, how, measures=False)
    return {"seen": seen, "again": again, "weights": weights, "plain": plain}


def monitor_refused():
    """Return what is said if rank 0 cannot write, and if ranks have other batches."""
    folder = Path(os.environ["RANKS_FOLDER"]) / f"taken-{distributed.get_world_size()}"
    if distributed.get_rank() == 0:
        folder.mkdir()
        (folder / "table.csv").write_text("another table")
    distributed.barrier()
    seeds = {"folder": 0, "batches": distributed.get_rank()}
    said = {}
    for kind, seed in seeds.items():
        try:
            hessfig.Monitor(
                sharded(network("mlp")),
                batches("mlp", seed),
                compute_loss=loss,
                folder=folder,
            )
        except hessfig.UserError as error:
            said[kind] = str(error)
    return said


def own_batches():
    rank = distributed.get_rank()
    weights = {"batch_weights": [1.0, 2.0 + rank], "sharded_batches": True}
    own = hessfig.Problem(
        sharded(network("mlp")), batches("mlp", rank), **SPLIT, **weights
    )
    frame = hessfig.measure(own, blocks=["all"], quantities=["largest_eigenvalue"])
    return dict(zip(frame["part"].astype(str), frame["value"], strict=True))


def probes():
    from hessfig.curvature.sharded.shards import Shards, parameters_of

    shards = Shards(parameters_of(sharded(network("mlp"))))
    drawn = shards.tensors(shards.probe(1, "all", 0, gaussian=True))
    return {
        name: one.full_tensor().tolist()
        for name, one in zip(shards.names, drawn, strict=True)
    }


def memory(*quantities):
    """Return what measuring a network of two million parameters takes on this rank, and what is said before, in MiB."""
    width = 1024
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    own = hessfig.Problem(
        sharded(net.double().eval()),
        [(torch.randn(4, width).double(), torch.arange(4))],
        compute_loss=loss,
    )
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
    before = _resident("VmRSS")
    with contextlib.redirect_stderr(io.StringIO()) as heard:
        hessfig.measure(
            own,
            blocks=["all"],
            quantities=[*quantities],
            num_probes=4,
            spectrum={"steps": 8, "tolerance": 1e-14},
        )
    sizes = re.findall(r"rank \d+: ([\d.]+) MiB", heard.getvalue())
    first = [float(size) for size in from_rank_0(sizes)]
    taken = _resident("VmHWM") - before
    return {"taken": taken, "said": first[distributed.get_rank()]}


def from_rank_0(given):
    told = [given]
    distributed.broadcast_object_list(told)
    return told[0]


def _resident(key):
    """Return resident memory, or its peak, in MiB."""
    words = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert words
    return int(words[1]) / 1024


WORDS = {
    "dtype": {"dtype": "float32"},
    "products": {"products": "curvlinops"},
    "quantity": {"quantities": ["residual_norm"]},
    "block": {"blocks": ["nosuch"]},
    "parts": {"parts": ["H_o"]},
    "convex": {"parts": ["H_o"]},
    "estimator": {"estimator": "dense"},
}
SHARDED = {
    "rough": "bfloat16",
    "part": "part",
    "weights": "tensor",
    "sharded_batches": "tensor",
}


def refused(kind):
    """Return the message of the error, and the seconds until it came."""
    rank = distributed.get_rank()
    dtype = {"bfloat16": torch.bfloat16, "rough": torch.float32}.get(
        kind, torch.float64
    )
    own = problem(
        "mlp",
        SHARDED.get(kind, "layers"),
        dtype,
        sharded_batches=kind == "sharded_batches",
    )
    net = own.network
    if kind == "batches" and rank == 1:
        own = replace(own, inputs=batches("mlp", 9))
    if kind == "part":
        own = replace(
            own, compute_loss=lambda net, batch: (1 + rank) * loss(net, batch)
        )
    if kind == "convex":
        own = replace(
            own,
            compute_outputs=outputs_of,
            compute_loss=lambda outputs, batch: -loss_of(outputs, batch),
        )
    if kind == "random":
        own = replace(
            own, compute_loss=lambda net, batch: loss(net, batch) * torch.rand(())
        )
    if kind == "weights" and rank == 1:
        with torch.no_grad():
            net[2].bias.to_local().add_(1e-9)
    if kind == "training":
        net.train()
    started = time.monotonic()
    try:
        OTHERWISE.get(kind, _measured)(own, kind)
    except hessfig.UserError as error:
        return {"error": str(error), "seconds": time.monotonic() - started}
    return {"error": ""}


def _measured(own, kind):
    return hessfig.measure(own, **{"blocks": ["all"], **WORDS.get(kind, {})})


# The other ways to a network, which take one that is whole.
OTHERWISE = {
    "objective": lambda own, _: own.objective("float64"),
    "approximation": lambda own, _: own.approximation("kfac", "0.weight"),
    "find_weights": lambda own, _: hessfig.find_weights(own.network),
    "curvlinops": lambda own, _: own.operator("all", products="curvlinops"),
}


def killed():
    """End rank 1 within a gradient, as a machine does that goes down."""
    calls = []

    def dying(net, batch):
        calls.append(1)
        if distributed.get_rank() == 1 and len(calls) > 7:
            os._exit(9)
        return loss(net, batch)

    own = hessfig.Problem(sharded(network("mlp")), batches("mlp"), compute_loss=dying)
    started = time.monotonic()
    try:
        hessfig.measure(own, blocks=["all"])
    except hessfig.UserError as error:
        return {"error": str(error), "seconds": time.monotonic() - started}
    return {"error": ""}


CASES = {one.__name__: one for one in (products, table, monitor, monitor_refused)}
CASES |= {one.__name__: one for one in (own_batches, probes, refused, killed, memory)}


def run_rank(folder, rank, size, cases):
    """Run cases, written as CASE:ARGUMENT:ARGUMENT, on this rank, and write what they return."""
    os.environ["RANKS_FOLDER"] = str(folder)
    store = distributed.FileStore(str(folder / f"store{size}"), size)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    for case in cases.split(","):
        name, *words = case.split(":")
        try:
            result = CASES[name](*words)
        except Exception:  # the other cases go on; the test of this one shows it
            result = {"failed": traceback.format_exc()}
        (folder / f"{case}.{size}.{rank}.json").write_text(json.dumps(result))
    distributed.barrier()  # no rank leaves while another still reads the last message


def main(folder, *plan):
    """Run the cases of every number of ranks, one number after the other."""
    torch.set_num_threads(1)
    if any(kind in " ".join(plan) for kind in ("gpt2", "llama", "mixtral")):
        from transformers import GPT2LMHeadModel, LlamaForCausalLM, MixtralForCausalLM  # noqa: F401 (before the forks)
    for one in plan:
        size, _, cases = one.partition("=")
        children = []
        for rank in range(int(size)):
            child = os.fork()
            if child == 0:
                try:
                    run_rank(Path(folder), rank, int(size), cases)
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
