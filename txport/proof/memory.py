"""Memory that the comparison of an export with PyTorch requires, estimated before anything is written.

The estimate is a lower bound, so an export that fits is never refused. Memory-mapped files do not count, because the
system can drop their pages.
"""

from __future__ import annotations

from torch import nn

from txport.bundles.manifest import arithmetic_of
from txport.models.adapters.adapted import Adapted
from txport.models.checkpoint import Checkpoint
from txport.proof.parity.exact import HALVES
from txport.system import memory

# Bytes per matrix weight that an ONNX Runtime session holds on a CPU, packed for its kernels. fp16 weights count as
# fp32, because there are no fp16 kernels. docs/sizes.md lists the measurements. There is no estimate for GPUs.
PACKED = {
    ("portable", "fp32"): 4.0,
    ("portable", "fp16"): 4.0,
    ("cpu", "fp32"): 4.0,
    ("cpu", "int8"): 1.0,
    ("cpu", "int4"): 0.5,
}
EXACT, HALF = 8, 2  # bytes per weight in float64 and in 16 bits


def require_room(checkpoint: Checkpoint, target: str, precision: str) -> None:
    """Raise `UnavailableError` if there is too little memory for the comparison; the message lists exports that fit."""
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
    """Return the minimum peak memory of the comparison in bytes: packed weights and PyTorch's weights in float64.

    In a causal cpu bundle, two graphs contain all weights. A streamed model has one tensor in float64 at a time. Any
    other model is in memory as a whole. For 16 bits it has two more copies: rounded weights, and float64 weights for
    the run with rounded activations.
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
