"""Tangents and cotangents of inner variables of a network's tape, for layers below the last."""

from __future__ import annotations

from collections.abc import Collection

from hessfig.curvature.products.linearised.node import Tangent, plus
from hessfig.curvature.products.linearised.tape import Tangents, Tape


def push_from(tape: Tape, tangents: Tangents) -> Tangents:
    """Return the tangents of everything that depends on the variables in `tangents`, those included."""
    known = dict(tangents)
    for node in tape.nodes:
        if node.output not in tangents and any(name in known for name in node.inputs):
            known[node.output] = node.push([known.get(name) for name in node.inputs])
    return known


def pull_to(tape: Tape, names: Collection[str], df_bar: Tangent, tangents: Tangents | None) -> Tangents:
    """Return the tangents of the cotangents of `names`, given that of the outputs.

    Without `tangents` these are the rows df_bar df/d(name); with them the second-order terms of H_f are added.
    """
    reached = _descendants(tape, names)
    bars: Tangents = {tape.nodes[-1].output: df_bar}
    for node in reversed(tape.nodes):
        needed = [name in reached for name in node.inputs]
        if node.output not in reached or not any(needed):
            continue
        bar = bars.get(node.output) if node.output in names else bars.pop(node.output, None)
        dxs = None if tangents is None else [tangents.get(name) for name in node.inputs]
        for name, part in zip(node.inputs, node.pull_back(bar, dxs, needed), strict=True):
            bars[name] = plus(bars.get(name), part)
    return {name: bars.get(name) for name in names}


def _descendants(tape: Tape, names: Collection[str]) -> set[str]:
    reached = set(names)
    for node in tape.nodes:
        if reached.intersection(node.inputs):
            reached.add(node.output)
    return reached
