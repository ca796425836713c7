"""The numbers of a model whose size is free: what makes them and all that reads them can share any factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from txport.models.model import Model
from txport.models.parts import NORM_TYPES, Attention, FeedForward, GatedFeedForward, Layer, Linear

Parts = tuple[nn.Module, tuple[Linear, ...]]  # what makes numbers, and the layers that read them


class Group(NamedTuple):
    """The weights, by their first names, of what makes some numbers, and the matrices that read them.

    `reader` is the name of a layer whose input they are.
    """

    made_by: tuple[str, ...]
    read_by: tuple[str, ...]
    reader: str


def groups_of(model: Model) -> Iterator[Group]:
    """Yield the outputs of norms before sublayers, and the ends of gated feed-forwards.

    Parameters that several modules share stay as they are.
    """
    names = {id(each): name for name, each in model.named_parameters()}
    places = {id(module): name for name, module in model.named_modules()}
    held = Counter(id(each) for module in model.modules() for each in module.parameters(recurse=False))
    for layer in (each for each in model.modules() if isinstance(each, Layer)):
        for maker, readers in (*_of_norms(layer), *_of_gates(layer)):
            own = (*maker.parameters(), *(each.weight for each in readers))
            if all(held[id(each)] == 1 for each in own):
                made_by = tuple(names[id(each)] for each in maker.parameters())
                yield Group(made_by, tuple(names[id(each.weight)] for each in readers), places[id(readers[0])])


def _of_norms(layer: Layer) -> Iterator[Parts]:
    norms: dict[nn.Module, list[tuple[Linear, ...]]] = {}
    for sublayer, around in layer.sublayers:
        if around.first and isinstance(around.norm, NORM_TYPES):
            norms.setdefault(around.norm, []).append(_readers(sublayer))
    yield from ((norm, sum(readers, ())) for norm, readers in norms.items() if all(readers))


def _readers(sublayer: nn.Module) -> tuple[Linear, ...]:
    """Return all layers that read the input of a sublayer; () if others read it too."""
    if isinstance(sublayer, Attention):
        return sublayer.query, sublayer.key, sublayer.value
    if isinstance(sublayer, GatedFeedForward):
        return sublayer.gate, sublayer.inner
    return (sublayer.inner,) if isinstance(sublayer, FeedForward) else ()


def _of_gates(layer: Layer) -> Iterator[Parts]:
    """activation(gate) * inner: a factor of `inner` is one of the product."""
    last = layer.feed_forward
    if (isinstance(last, GatedFeedForward) and not last.limit) or (
        isinstance(last, FeedForward) and last.activation == "relu"
    ):
        yield last.inner, (last.outer,)
