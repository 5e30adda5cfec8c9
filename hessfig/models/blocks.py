"""Blocks of the Hessian by name, and blocks that vanish by the structure of the network."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from hessfig.config.enums import MLP, Attention, Gate, Norm, Positions, QueryKey, Scores
from hessfig.config.schema import with_defaults
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError, did_you_mean, typed
from hessfig.models.protocol import kind
from hessfig.terms import GATED, SMOOTH, Block, Group, Matrix, Part
from hessfig.weights import Layout


def matrices_of(model: ModelConfig) -> list[Matrix]:
    """Return the weights of the paper that this architecture has, in the order of its parameters."""
    return kind(model.kind).matrices(model)


TIED = "W_E+W_U"  # one parameter in both roles; its block contains second derivatives in both roles, and mixed ones
COMPONENTS = (
    "attention_bias",
    "scores",
    "norm_kind",
    "norm_eps",
    "positions",
    "n_kv_heads",
    "gate",
    "tied",
    "window",
    "residual_scale",
    "differential_lambda",
    "differential_norm",
    "softcap",
    "centring",
)
# Settings of networks of attention and MLPs, with the values that the paper's network
# has.
OF_LAYERS = (
    "n_layers",
    "n_heads",
    "d_model",
    "d_head",
    "d_mlp",
    "attention",
    "attention_skip",
    "norm",
    "mlp",
    "query_key",
    "temperature",
    "sigma_scales",
    "initialisation",
    "scaled_weight",
    "weight_scale",
)
_FIRST: dict[str, Sequence[str]] = {
    "attention": (Attention.softmax, Attention.linear),
    "norm": (Norm.none, Norm.pre, Norm.post),
    "mlp": (MLP.relu, MLP.gelu, MLP.linear, MLP.none),
}
FIRST = {name: f"model.{name}={'|'.join(known)}" for name, known in _FIRST.items()}


def components(model: ModelConfig) -> dict[str, Any]:
    """Return the settings that differ from the paper's network, with their values; exact norms do not support them."""
    supported: dict[str, Sequence[Any]] = {
        **{name: (getattr(ModelConfig, name),) for name in COMPONENTS},
        **_FIRST,
    }
    values = {name: getattr(model, name) for name in supported}
    return {name: one for name, one in values.items() if one not in supported[name]}


def attention_matrices(model: ModelConfig) -> list[Matrix]:
    """Return the weights of an attention without an output projection."""
    if model.query_key == QueryKey.single:
        query_key = [Matrix.W_QK]
    else:
        query_key = [Matrix.W_Q, Matrix.W_K]
    return [*query_key, Matrix.W_V, *[Matrix.W_G] * (model.gate == Gate.output)]


def attention_groups(matrix: str) -> tuple[str, ...]:
    """Return the groups of a weight of attention; weights of queries and keys also form a group."""
    return (Group.attention.value, *(Group.query_key.value,) * (matrix in SCORE_LIKE))


def layer_matrices(model: ModelConfig) -> list[Matrix]:
    """Return the weights of one layer of a transformer."""
    names = attention_matrices(model)
    names.insert(names.index(Matrix.W_V) + 1, Matrix.W_O)
    if model.mlp in GATED:
        names.append(Matrix.W_gate)
    if model.mlp != MLP.none:
        names += [Matrix.W_in, Matrix.W_out]
    return names


def transformer_matrices(model: ModelConfig) -> list[Matrix]:
    """Return the weights of a transformer on tokens; a tied embedding is not a weight of the paper."""
    embeddings = [Matrix.W_E] * (not model.tied) + [Matrix.W_pos] * (
        model.positions == Positions.learned
    )
    return [*embeddings, *layer_matrices(model), *[Matrix.W_U] * (not model.tied)]


def weight_size(matrix: str, model: ModelConfig, task: TaskConfig) -> int:
    """Return the number of entries of a weight of attention or of a transformer, the dimension of its block."""
    m = with_defaults(model)
    shared = m.d_model * (m.n_kv_heads or m.n_heads) * (m.d_head or 0)
    sizes: dict[str, int] = {
        **dict.fromkeys((Matrix.W_E, TIED, Matrix.W_U), task.vocabulary * m.d_model),
        **dict.fromkeys((Matrix.W_K, Matrix.W_V), shared),
        **dict.fromkeys(_MLP, m.d_model * (m.d_mlp or 0)),
        Matrix.W_pos: task.num_tokens * m.d_model,
        Matrix.W_QK: m.d_model**2 * m.n_heads,
    }
    return sizes.get(matrix, m.d_model * m.n_heads * (m.d_head or 0))


_MLP = (Matrix.W_gate, Matrix.W_in, Matrix.W_out)
_ALWAYS = {Matrix.W_U, Matrix.W}
SCORE_LIKE = {Matrix.W_Q, Matrix.W_K, Matrix.W_QK}


def is_structural_zero(model: ModelConfig, block: Block, part: Part) -> bool:
    """Whether H_f(W, W) = 0 because the outputs are affine (or piecewise affine) in W, or H_fT = 0.

    H_fT of W_Q, W_K and W_QK always vanishes, because the scores are linear in each
    (Lemma 4.1, Remark D.1).

    True for W_U and for linear MLPs always; without norms, in the last layer: for W_out
    always, for W_in unless the activation is smooth (a gated MLP is linear in it), for
    W_V and W_O (Theorem 3.2) and, where the mixing weights are piecewise linear in
    scores that are linear in queries and keys (linear attention and sparsemax), for W_Q
    and W_K (Remark 4.1), unless a smooth activation follows. A norm of the heads'
    outputs is not affine in W_V.
    """
    if part == Part.H_fT:
        return (
            block.row != Group.query_key and block.is_diagonal
        ) or model.query_key == QueryKey.single
    if part != Part.H_f or not block.is_diagonal:
        return False
    if block.row in _ALWAYS:
        return True
    if model.norm != Norm.none or block.layer != model.n_layers:
        return False
    return block.row in _affine_in_last_layer(model)


def _affine_in_last_layer(model: ModelConfig) -> set[Matrix]:
    has_mlp = Matrix.W_in in matrices_of(model)
    is_linear_in = model.mlp not in SMOOTH or model.mlp in GATED
    affine = {Matrix.W_out, Matrix.W_in} if is_linear_in else {Matrix.W_out}
    if has_mlp and model.mlp in SMOOTH:
        return affine
    affine.add(Matrix.W_O)
    if model.attention != Attention.differential or not model.differential_norm:
        affine.add(Matrix.W_V)
    # The mixing weights are piecewise linear in each of W_Q and W_K.
    is_piecewise = model.attention in (Attention.linear, Attention.sparsemax)
    if model.scores == Scores.plain and is_piecewise:
        affine |= SCORE_LIKE
    return affine


# The setting all meant every pair before 0.5.
EVERY_PAIR = ("pairs", "all")
EVERY_WEIGHT = "each"
AT = "@"
ANY = "*"
MOST_BLOCKS = 20_000  # limit per network; planning that many takes some seconds
Pair = tuple[str, str]
_SHORT = re.compile(r"^(W_\w+(?:\.cross)?)\.h(\d+)$")  # W_Q.h2 is short for W_Q.head2


def blocks_of(setting: Any, layout: Layout, model: ModelConfig) -> list[Block]:
    """Parse the setting `blocks`: a name means a diagonal block, a list of two names a pair, both in every layer.

    `each` means the diagonal block of every weight, and `pairs` (or `all`, outside of a
    list) every pair of weights. A name may be a pattern as in shells, which matches any
    number of weights (W_*, *.attn.*), or a group (attention, mlp, norms, embeddings,
    layer, all). It may be pinned to a layer, W_V@2; pairs of pinned names may cross
    layers, and @* means every layer in turn. Blocks are sorted by layer: blocks without
    a layer come first, pinned blocks last. Raises UserError for a name, a layer or a
    pair that the network does not have.
    """
    pairs = _pairs(setting, layout, model)
    plain = [pair for pair in pairs if AT not in "".join(pair)]
    reaching = [pair for pair in pairs if AT in "".join(pair)]
    of_plain = sum(_count(pair, layout) for pair in plain)
    _check_number(of_plain + sum(_reach(pair, layout) for pair in reaching))
    pinned = [block for pair in reaching for block in _pinned(pair, layout)]
    return list(dict.fromkeys([*_layer_by_layer(plain, layout), *pinned]))


def _count(pair: Pair, layout: Layout) -> int:
    """Return an upper bound of the number of blocks for a pair without pinned layers."""
    return min(
        (len(layout.layers_of(name)) for name in pair if layout.has_layer(name)),
        default=1,
    )


def _reach(pair: Pair, layout: Layout) -> int:
    """Return the number of blocks for a pair with pinned layers."""
    return math.prod(len(_at(name, layout)[1]) for name in pair)


def _pairs(setting: Any, layout: Layout, model: ModelConfig) -> list[Pair]:
    names = layout.names
    if isinstance(setting, str) and setting in EVERY_PAIR:
        _check_number(len(names) * (len(names) + 1) // 2)
        return [(row, col) for i, row in enumerate(names) for col in names[i:]]
    if setting == EVERY_WEIGHT:
        return [(name, name) for name in names]
    entries = [setting] if isinstance(setting, str) else setting
    if not isinstance(entries, list | tuple) or not entries:
        is_empty = entries in ([], (), None)
        raise UserError(
            f"blocks is {'empty' if is_empty else 'not a list of names'}",
            got=setting,
            allowed=_allowed(layout),
            remedy="for example blocks=[W_V,W_Q]",
        )
    named = [one for entry in entries for one in _matching(entry, layout)]
    _check_number(len(named))
    return list(dict.fromkeys(_pair(entry, layout, model) for entry in named))


def _matching(entry: Any, layout: Layout) -> list[Any]:
    """Expand an entry with patterns into all matching weights, or pairs of weights."""
    if isinstance(entry, str):
        return _named_like(entry, layout)
    if isinstance(entry, list | tuple) and all(isinstance(name, str) for name in entry):
        return [*map(list, product(*(_named_like(name, layout) for name in entry)))]
    return [entry]


def _named_like(name: str, layout: Layout) -> list[str]:
    """Return the weights whose names match a shell pattern (*, ?, [abc]), with the layer after @, or just the name."""
    bare, at, layer = name.partition(AT)
    names = dict.fromkeys(weight.name for weight in layout.weights)
    if bare in names:
        return [name]
    bare = _SHORT.sub(r"\1.head\2", bare)
    if not set("*?[") & set(bare):
        return [f"{bare}{at}{layer}"]
    matches = [known for known in names if fnmatchcase(known, bare)]
    if not matches:
        raise UserError(
            f"blocks: no weight matches {name!r}",
            got=name,
            allowed=_allowed(layout),
            remedy="for example blocks=['*.weight'], or ['W_*'] for the weights of the paper's networks",
        )
    return [f"{match}{at}{layer}" for match in matches]


def _check_number(number: int) -> None:
    if number > MOST_BLOCKS:
        raise UserError(
            "blocks: too many for one run",
            got=f"{number} blocks",
            allowed=f"at most {MOST_BLOCKS}",
            remedy="select fewer, or split them into several runs, each with its own sweep.name",
        )


def _pair(entry: Any, layout: Layout, model: ModelConfig) -> Pair:
    # W_V@* alone means the same as W_V: the block of every layer
    alone = entry.removesuffix(AT + ANY) if isinstance(entry, str) else entry
    names = list(entry) if isinstance(entry, list | tuple) else [alone, alone]
    if len(names) != 2:
        raise UserError(
            "blocks: a pair has two weights",
            got=entry,
            allowed=_allowed(layout),
            remedy="for example blocks=[[W_Q,W_V]]",
        )
    for name in names:
        _check_name(name, entry, layout, model)
    return str(names[0]), str(names[1])


def _check_name(name: Any, entry: Any, layout: Layout, model: ModelConfig) -> None:
    bare, at, layer = str(name).partition(AT)
    layers = layout.layers_of(bare)
    for number in layers:
        if not at or layer in (ANY, str(number)):
            _check_apart(bare, number, layout)
    if not layers:
        if name in list(Matrix) and matrices_of(model):
            raise _not_of_this_model(Matrix(name), entry, layout, model)
        raise _no_weight(name, layout)
    if at and layer != ANY and layer not in map(str, layers):
        raise UserError(
            f"blocks: {bare} is not in layer {layer or '(none)'}",
            got=name,
            allowed=f"{bare}@N with N one of {', '.join(map(str, layers))}, or {bare}@*",
            remedy=f"for example {bare}@{layers[-1]}",
        )


def _check_apart(name: str, layer: int, layout: Layout) -> None:
    """Raise UserError for a layer as a group if its weights overlap, since entries would count twice."""
    members = layout.members(layer, name)
    for pair in layout.shared:
        if all(weight in members for weight in pair):
            raise UserError(
                f"blocks: {name} of layer {layer} contains entries twice",
                got=f"{pair[0].name} and {pair[1].name} have entries in common",
                allowed="groups of weights without a common entry",
                remedy="name a group of your own: weights={NAME@LAYER: [parameter, parameter, ...]}",
            )


def _layer_by_layer(pairs: Sequence[Pair], layout: Layout) -> list[Block]:
    blocks: dict[int, list[Block]] = {0: []}
    for row, col in pairs:
        layers = {*layout.layers_of(row), *layout.layers_of(col)} - {0}
        for layer in layers or {0}:
            if not layer or _is_there(layer, (row, col), layout):
                blocks.setdefault(layer, []).append(Block(layer, row, col))
    return [block for layer in sorted(blocks) for block in blocks[layer]]


def _is_there(layer: int, pair: Pair, layout: Layout) -> bool:
    """Whether each of the two weights is in this layer or outside the layers."""
    return all(layout.members(layer, name) or layout.members(0, name) for name in pair)


def _pinned(pair: Pair, layout: Layout) -> list[Block]:
    (row, row_layers), (col, col_layers) = (_at(name, layout) for name in pair)
    mirrored = pair[0] == pair[1]
    return [
        Block(layer or row_layer, row, col, row_layer or layer)
        for row_layer, layer in product(row_layers, col_layers)
        if not mirrored or row_layer <= layer
    ]


def _at(name: str, layout: Layout) -> tuple[str, list[int]]:
    bare, _, layer = name.partition(AT)
    return bare, [int(layer)] if layer.isdigit() else layout.layers_of(bare)


def _no_weight(name: Any, layout: Layout) -> UserError:
    known = [*layout.names, *layout.others]
    if name in (EVERY_WEIGHT, EVERY_PAIR[0]):
        return UserError(
            f"blocks: {name} stands alone, not in a list",
            got=f"[{name}]",
            allowed=_allowed(layout),
            remedy=f"blocks={name!r} in Python, blocks={name} on the command line",
        )
    if name in layout.empty:
        return UserError(
            f"blocks: the parameter {name} has no entries",
            got=name,
            allowed=_allowed(layout),
            remedy=f"leave {name} out",
        )
    return UserError(
        f"blocks: there is no weight named {name!r}",
        got=name,
        allowed=_allowed(layout),
        remedy=did_you_mean(str(name), known) or f"for example blocks=[{known[0]}]",
    )


def _not_of_this_model(
    matrix: Matrix, entry: Any, layout: Layout, model: ModelConfig
) -> UserError:
    now, home = _switch(matrix, model)
    pair = isinstance(entry, list | tuple)
    got = f"[{', '.join(map(str, entry))}]" if pair else matrix
    return UserError(
        f"blocks: this model has no weight {matrix} ({now})"
        + f": {got} is not a pair of one model" * pair,
        got=got,
        allowed=_allowed(layout),
        remedy=f"leave {matrix} out, or take another model: {home}",
    )


def _switch(matrix: Matrix, model: ModelConfig) -> tuple[str, str]:
    """Return the setting that excludes `matrix` from this model, and a setting that includes it."""
    is_single = model.query_key == QueryKey.single
    switches: dict[str, Any] = {
        "query_key": QueryKey.separate if is_single else QueryKey.single,
        "mlp": MLP.swiglu if matrix == Matrix.W_gate else MLP.relu,
        "gate": Gate.output,
        "tied": False,
        "positions": Positions.learned,
    }
    for name, value in switches.items():
        if matrix in matrices_of(replace(model, **{name: value})):
            return (
                f"model.{name}={typed(getattr(model, name))}",
                f"model.{name}={typed(value)}",
            )
    homes = {Matrix.W: "model=linear_mlp", Matrix.W_patch: "model=vit task=digits"}
    return f"model.kind={model.kind}", homes.get(matrix, "model=gpt2")


def _allowed(layout: Layout) -> str:
    names = ", ".join(layout.names)
    others = ", ".join(layout.others)
    return (
        f"each, all, or a list of names or pairs of {names}"
        + f"; also {others}" * bool(others)
    )
