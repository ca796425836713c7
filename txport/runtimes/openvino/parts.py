"""A portable decoder in two parts, each a graph of its own: what it makes of the source, and a step.

One graph serves the first step and all later ones: it projects what of the source is not in the caches yet, and joins
that to them. In a step nothing is left to project, and joining copies what all rows have of the source. So the step's
part takes the caches as they are, and the weights that project the source are in the other part alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txport.runtimes.openvino.library import openvino

Model = Any  # openvino has no types
Node = Any


def part(model: Model, outputs: Sequence[str], known: Mapping[str, str]) -> Model:
    """A graph that gives some of a graph's outputs, with the inputs that these need.

    `known` are outputs that are equal to inputs: what reads them reads the inputs. The model itself is left alone.
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
    """The names of the parameters that results depend on."""
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
