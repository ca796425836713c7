"""The program in a README that runs the graph of a whole search once."""

from __future__ import annotations

from string import Template

from txport.bundles import ports
from txport.bundles.manifest import Manifest
from txport.bundles.readme import settings

CALL = Template('''\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("$file")


def generate(source, beams=$beams, most=$most):
    """$reads -> the ids of the best target, the end token counted."""
    given = {
$inputs
    }
    sequences, scores, lengths = session.run(None, given)
    return sequences[0, 0, : lengths[0, 0]].tolist()  # the best hypothesis
''')


def one_run(manifest: Manifest) -> str:
    """Return the program, which defines `generate`."""
    graph = manifest.graphs[ports.GENERATE]
    prefix = list(settings.start(manifest)[1:])
    values = {
        ports.INPUT_IDS: "np.array([source])",
        ports.INPUT_FEATURES: "np.array([source], np.float32)",
        ports.ATTENTION_MASK: "np.ones((1, len(source)), np.int64)",
        ports.PREFIX_IDS: f"np.array([{prefix}], np.int64)" if prefix else "np.zeros((1, 0), np.int64)",
        ports.MAX_NEW_TOKENS: "np.array([most])",
        ports.NUM_BEAMS: "np.array([beams])",
        ports.LENGTH_PENALTY: f"np.array([{float(manifest.generation.get('length_penalty') or 1)}], np.float32)",
    }
    return CALL.substitute(
        file=graph.file,
        beams=manifest.generation.get("beams") or 1,
        most=max(1, settings.most(manifest)),
        reads="Log-mel features" if settings.reads_features(manifest) else "The ids of a source or prompt",
        inputs="\n".join(f'        "{port.name}": {values[port.name]},' for port in graph.inputs),
    )
