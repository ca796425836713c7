"""What the proof of an export takes of memory, told before anything is written.

The estimate is what a proof is known to hold at least, so that what fits is never refused. Files that are mapped do not
count: their pages give way where memory is needed.
"""

from __future__ import annotations

from torch import nn

from txport.bundles.manifest import arithmetic_of
from txport.models.adapters.adapted import Adapted
from txport.models.checkpoint import Checkpoint
from txport.proof.parity.exact import HALVES
from txport.system import memory

# Bytes that a session of ONNX Runtime holds on a CPU for each weight of a matrix, packed for its kernels. None are of
# fp16, so those weights are fp32 there. docs/sizes.md has what was measured. On a GPU nothing was: nothing is foretold.
PACKED = {
    ("portable", "fp32"): 4.0,
    ("portable", "fp16"): 4.0,
    ("cpu", "fp32"): 4.0,
    ("cpu", "int8"): 1.0,
    ("cpu", "int4"): 0.5,
}
EXACT, HALF = 8, 2  # bytes of a weight in float64, and in 16 bits


def require_room(checkpoint: Checkpoint, target: str, precision: str) -> None:
    """Raise `UnavailableError` where there is clearly too little memory for a proof, with what would fit."""
    free = memory.available()
    needed = memory_for(checkpoint, target, precision)
    if free is None or needed <= free:
        return
    targets = ("portable",) if isinstance(checkpoint.outline, Adapted) else ("portable", "cpu")
    fitting = [kind for kind in PACKED if kind[0] in targets and memory_for(checkpoint, *kind) <= free]
    kinds = "".join(f"--target {each} --precision {kind}, " for each, kind in fitting)
    fix = f"free some, or export with {kinds}or --weights none, which writes the graphs alone"
    memory.require(needed, f"comparing {checkpoint.name} ({target} {precision}) with PyTorch", fix)


def memory_for(checkpoint: Checkpoint, target: str, precision: str) -> int:
    """Bytes that the proof of an export holds at its worst moment, at least: packed weights, and PyTorch's in float64.

    Of a causal cpu bundle, two graphs have all weights. A streamed model has one tensor in float64 at a time. Any other
    is held whole, and for 16 bits twice more: rounded, and in float64 with what it computes rounded.
    """
    model = checkpoint.outline
    products = {id(each.weight): each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear)}
    graphs = 2 if target == "cpu" and model.facts.task == "causal" else 1
    packed = PACKED.get((target, precision), 0.0) * graphs * sum(products.values())
    sizes = [each.numel() for each in model.parameters()]
    if checkpoint.read is not None:
        return int(packed) + EXACT * max(sizes)
    halved = HALF + EXACT if arithmetic_of(target, precision) in HALVES else 0
    return int(packed) + (0 if model.fp32_only else EXACT + halved) * sum(sizes)
