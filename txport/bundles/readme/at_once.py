"""The section on the single graph, which contains the search: one run, without a loop."""

from __future__ import annotations

from collections.abc import Iterator

from txport.bundles import ports as names
from txport.bundles.manifest import Manifest
from txport.bundles.readme.settings import Settings
from txport.models.audio.facts import Features

CALL = """
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("FILE")


def generate(GIVEN, beams=BEAMS, most=MOST):
    \"\"\"DOC\"\"\"
    given = {
INPUTS
    }
    sequences, scores, lengths = session.run(None, given)
    return sequences[0, 0, : lengths[0, 0]].tolist()  # the best hypothesis
"""


def section(manifest: Manifest) -> Iterator[str]:
    """Yield the blocks of the section: the purpose of the graph, and an example in Python."""
    graph = manifest.graphs[names.GENERATE]
    yield "### In one run"
    yield (
        f"`{graph.file}` is the whole of a search, greedy or with beams, in standard operators, with the checkpoint's "
        "other settings built in. It reads the weights from the files of the other graphs beside it."
    )
    yield f"```python\n{_call(manifest, graph.file).strip()}\n```"


def _call(manifest: Manifest, file: str) -> str:
    facts = manifest.facts
    is_heard = isinstance(facts.source, Features)
    is_prompt = facts.task == "causal"
    what = "features" if is_heard else "prompt" if is_prompt else "source"
    reads = "Log-mel features" if is_heard else f"The ids of a {what}"
    text = (
        CALL.replace("FILE", file).replace("GIVEN", what).replace("BEAMS", str(manifest.generation.get("beams") or 1))
    )
    text = text.replace("MOST", str(max(1, Settings(manifest).most)))
    text = text.replace("DOC", f"{reads} -> the ids of the best target, the end token counted.")
    return text.replace("INPUTS", "\n".join(f"        {line}," for line in _inputs(manifest, what)))


def _inputs(manifest: Manifest, what: str) -> Iterator[str]:
    for port in manifest.graphs[names.GENERATE].inputs:
        yield f'"{port.name}": {_value(port.name, what, manifest)}'


def _value(name: str, what: str, manifest: Manifest) -> str:
    if name == names.PREFIX_IDS:
        prefix = list(Settings(manifest).start[1:])
        return f"np.array([{prefix}], np.int64)" if prefix else "np.zeros((1, 0), np.int64)"
    return {
        names.INPUT_IDS: f"np.array([{what}])",
        names.INPUT_FEATURES: f"np.array([{what}], np.float32)",
        names.ATTENTION_MASK: f"np.ones((1, len({what})), np.int64)",
        names.MAX_NEW_TOKENS: "np.array([most])",
        names.NUM_BEAMS: "np.array([beams])",
        names.LENGTH_PENALTY: f"np.array([{float(manifest.generation.get('length_penalty') or 1)}], np.float32)",
    }[name]
