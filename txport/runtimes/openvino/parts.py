"""Split a portable decoder into two graphs: the cross-attention keys and values of the source, and a step.

A portable decoder graph serves the first step and all later ones. It projects the source positions that are not in the
caches yet, and concatenates the result to the caches. In later steps there is nothing to project, and the concatenation
would copy all cross-attention caches. The step graph therefore reads the caches directly, and only the other graph has
the weights of these projections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txport.runtimes.openvino.library import openvino

Model = Any  # openvino has no types
Node = Any


def part(model: Model, outputs: Sequence[str], known: Mapping[str, str]) -> Model:
    """Return a graph with the given outputs of a model and only the inputs that they need.

    `known` maps outputs to inputs with equal values, which replace them as inputs of nodes. The model does not change.
    """
    copied = model.clone()
    inputs = {name: each for each in copied.inputs for name in each.get_names()}
    results = {name: each.get_node() for each in copied.outputs for name in each.get_names()}
    for name, same in known.items():
        results[name].input(0).get_source_output().replace(inputs[same])
    kept = [results[name] for name in outputs]
    read = _parameters(kept)
    return openvino.Model(kept, [each for each in copied.get_parameters() if each.get_name() in read], "part")


def _parameters(results: Sequence[Node]) -> set[str]:
    """Return the names of the parameters that the results depend on."""
    pending = list(results)
    seen = set[str]()
    found = set[str]()
    while pending:
        node = pending.pop()
        if node.get_name() in seen:
            continue
        seen.add(node.get_name())
        if node.get_type_name() == "Parameter":
            found.add(node.get_name())
        pending += [each.get_source_output().get_node() for each in node.inputs()]
    return found
