"""Memory that the comparison of an export with PyTorch requires, estimated before anything is written.

The estimate is what the process takes in addition to its modules. Memory-mapped files do not count, because the system
can drop their pages.
"""

from __future__ import annotations

import math

from torch import nn

from txport.checkpoints.adapters.adapted import Adapted
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.streamed import MOST_ROOM
from txport.exporters.portable.write import EXTERNAL_ABOVE
from txport.exporters.weights import KEPT
from txport.models.audio import Features
from txport.models.facts import Facts, StateTensor
from txport.models.model import Model
from txport.models.ops import MOST_SCORES
from txport.models.parts import Attention, Linear
from txport.proof.context.check import is_long
from txport.proof.few_bits.loss import NEW_TOKENS
from txport.proof.few_bits.loss import ROWS as TRIAL_ROWS
from txport.proof.parity.cases import reach_of
from txport.proof.parity.exact import HALVES
from txport.system import memory
from txport.targets import target_of

# Bytes per matrix weight that an ONNX Runtime session holds on a CPU, packed for its kernels. fp16 weights count as
# fp32, because there are no fp16 kernels. docs/sizes.md lists the measurements. There is no estimate for GPUs.
PACKED = {
    ("portable", "fp32"): 4.0,
    ("portable", "fp16"): 4.0,
    ("portable", "int8"): 1.2,
    ("portable", "int4"): 0.9,
    ("cpu", "fp32"): 4.0,
    ("cpu", "int8"): 1.2,  # with scales
    ("cpu", "int4"): 0.9,  # with scales; of causal models, with half in 8 bits
}
EXACT, OWN, HALF = 8, 4, 2  # bytes of a number in float64, in fp32 and in 16 bits
COPIED = 1.5
GRADIENTS = 14  # tensors as large as the logits, for gradients of a few draws
ROWS = 2  # of features, which all have the same length; the longest text is alone


def require_room(checkpoint: Checkpoint, target: str, precision: str, *, auto: bool = False) -> None:
    """Raise `OutOfMemoryError` if there is too little memory for the comparison; the message lists exports that fit.

    With `auto`, memory for the costs of matrices is required, too.
    """
    free = memory.available()
    needed = memory_for(checkpoint, target, precision)
    if free is None or needed <= free:
        if auto:
            what = f"auto, which holds the weights of {checkpoint.name} in fp32,"
            memory.require(_of_costs(checkpoint.outline), what, "free some, or leave auto out")
        return
    targets = ("portable",) if isinstance(checkpoint.outline, Adapted) else ("portable", "cpu")
    fitting = [kind for kind in PACKED if kind[0] in targets and memory_for(checkpoint, *kind) <= free]
    kinds = "".join(f"target='{each}' and precision='{kind}', " for each, kind in fitting)
    fix = f"free some, or export with {kinds}or weights=False, which writes the graphs alone"
    memory.require(needed, f"comparing {checkpoint.name} ({target} {precision}) with PyTorch", fix)


def memory_for(checkpoint: Checkpoint, target: str, precision: str) -> int:
    """Return the peak memory of the comparison in bytes: of whole graphs, or of parts at the end of the context."""
    return max(_of_graphs(checkpoint, target, precision), _of_context(checkpoint, target))


def _of_graphs(checkpoint: Checkpoint, target: str, precision: str) -> int:
    """Return the bytes of the packed weights, of PyTorch's weights, and of what is computed for the longest case.

    In a causal cpu bundle of few bits, there is one more copy of the weights of all layers, as measured. A portable
    session packs a tied table, and reads it as it is, too. A streamed model has
    at most one tensor, or `MOST_ROOM` numbers, in float64 and in the precision, before there are logits or products to
    compare; of few bits, it keeps some weights. Any other model is in memory as a whole. For 16 bits it has two more
    copies: rounded weights, and float64 weights for the run with rounded activations.
    """
    model = checkpoint.outline
    products = {id(each.weight): each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear)}
    last = [each.weight.numel() for each in model.modules() if isinstance(each, Linear) and each.tag == "projection"]
    held = sum(products.values())
    made_for = target_of(target)
    is_few = made_for.quantises(precision)
    if made_for.is_flat and model.facts.is_causal and is_few:
        held += held - sum(last)
    packed = int(PACKED.get((target, precision), 0.0) * held)
    stored = packed if is_few else (HALF if made_for.arithmetic(precision) in HALVES else OWN) * held
    if made_for.is_standard and stored < EXTERNAL_ABOVE:  # the session reads the weights with the graph, and packs them
        packed += stored
    if checkpoint.read is not None:
        tables = {id(each.weight): each.weight.numel() for each in model.modules() if isinstance(each, nn.Embedding)}
        if made_for.is_standard:
            packed += OWN * sum(size for key, size in tables.items() if key in products)
        room = (EXACT + OWN) * min(MOST_ROOM, max(products.values()))
        largest = max(room, _of_logits(model, EXACT)) + _of_activations(model, EXACT)
        if is_few and not made_for.multiplies_in:
            packed += min(KEPT, OWN * held)
            largest = max(largest, _of_products(model) + _of_activations(model, EXACT, rows=1))
        return packed + largest
    sizes = sum(each.numel() for each in model.parameters())
    halved = HALF + EXACT if made_for.arithmetic(precision) in HALVES else 0
    weights = (0 if model.fp32_only else EXACT + halved) * sizes
    size = OWN if model.fp32_only else EXACT
    return packed + weights + _of_logits(model, size) + _of_activations(model, size)


def _of_costs(model: Model) -> int:
    """Return the bytes of the weights in fp32, and of what gradients need of the logits of all rows, as measured."""
    facts = model.facts
    logits = 0 if facts.target is None else GRADIENTS * OWN * TRIAL_ROWS * NEW_TOKENS * facts.target.size
    return OWN * sum(each.numel() for each in model.parameters()) + logits


def _lengths(facts: Facts) -> tuple[int, int]:
    """Return the length of the source and of the target of the longest case."""
    source, target = (
        min(*pair) for pair in zip(reach_of(facts), (facts.reads.longest, facts.writes.longest), strict=True)
    )
    return source, target


def _of_logits(model: Model, size: int) -> int:
    """Return the bytes of the logits of the longest case: PyTorch's, whose numbers have `size` bytes, and in fp32.

    While they are compared, there are also both and their difference in float64.
    """
    facts = model.facts
    return 0 if facts.target is None else (size + 2 * OWN + 3 * EXACT) * _lengths(facts)[1] * facts.target.size


def _of_products(model: Model) -> int:
    """Return the bytes of the inputs and results of all products of the longest case: ONNX Runtime's and copies.

    Products with the same input share it, and copies are made one by one, so they take `COPIED` times their size.
    """
    lengths = dict(zip(("encoder", "decoder"), _lengths(model.facts), strict=True))
    layers = ((lengths[stack.side], each) for stack in model.stacks for each in stack.layers.modules())
    numbers = (length * (each.in_features + each.out_features) for length, each in layers if isinstance(each, Linear))
    return int(COPIED * OWN * sum(numbers))


def _of_activations(model: Model, size: int, *, rows: int = ROWS) -> int:
    """Return the bytes of the scores and caches of the longest case, whose numbers have `size` bytes.

    Scores are held before and after the softmax, with their mask; caches also in fp32, as PyTorch's and the graph's.
    There are `rows` sources if they are features; products are compared for one.
    """
    facts = model.facts
    source, target = _lengths(facts)
    heads = max((part.core.heads for part in model.modules() if isinstance(part, Attention)), default=0)
    scores = 3 * size * min(MOST_SCORES, heads * max(source, target) ** 2)
    rows = rows if isinstance(facts.reads, Features) else 1
    lengths = {"row": target, "source": source}
    caches = rows * (2 * size + 3 * OWN) * sum(lengths[each.owner] * _width(each) for each in facts.state)
    return scores + caches


def _of_context(checkpoint: Checkpoint, target: str) -> int:
    """Return the bytes of the caches of one layer at the end of the context: in fp32, in float64, and in the graph.

    A portable graph joins the old keys and values and the new ones, and transposes the keys.
    """
    facts = checkpoint.facts
    if isinstance(checkpoint.outline, Adapted) or not is_long(facts):
        return 0
    layer = max((each.layer for each in facts.owned("row")), default=0)
    numbers = sum(_width(each) for each in facts.owned("row") if each.layer == layer) * facts.writes.longest
    copies = 2.5 if target_of(target).is_standard else 0.0
    tables = 2 * OWN * sum(each.numel() for each in checkpoint.outline.buffers())  # computed before, and in a session
    return int(numbers * (OWN + EXACT + copies * OWN)) + tables


def _width(state: StateTensor) -> int:
    """Return the numbers of a cache for one token."""
    return math.prod(state.shape(1, 1))
