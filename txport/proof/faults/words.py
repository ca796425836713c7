"""Descriptions of the parts of a model, from their types and their positions in the module tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from torch import nn

from txport.models.facts import StateTensor
from txport.models.model import Model, Stack
from txport.models.parts import (
    NORM_TYPES,
    Additive,
    Attention,
    Disentangled,
    DotProduct,
    Embedding,
    FeedForward,
    Frames,
    GatedFeedForward,
    Layer,
    Linear,
    PositionVectors,
    RelativeBias,
    RelativeVectors,
    Residual,
    Rotary,
    Window,
)

ATTENTIONS = {"row": "self-attention", "source": "cross-attention"}
PROJECTION = "projection"  # tag of a linear layer


class Place(NamedTuple):
    """A part in the module tree: its parent, and the attribute of the parent."""

    attribute: str
    part: nn.Module
    parent: nn.Module


def _linear(place: Place) -> str:
    if getattr(place.part, "tag", None) == PROJECTION:
        return "projection to the vocabulary"
    leaves = {"inner": "first linear layer", "outer": "second linear layer", "output": "output projection"}
    own = isinstance(place.parent, Attention | FeedForward | GatedFeedForward)
    return leaves.get(place.attribute, place.attribute) if own else _plain(place)


def _norm(place: Place) -> str:
    if isinstance(place.parent, Residual):
        return "" if place.attribute == "norm" else "of its result"
    if isinstance(place.parent, Embedding):
        return ""
    return "final norm" if _ended_stack(place) is not None else _plain(place)


def _residual(place: Place) -> str:
    """Describe the norm of a residual by the sublayer that it contains."""
    sublayers = place.parent.sublayers if isinstance(place.parent, Layer) else ()
    inner = next((sublayer for sublayer, around in sublayers if around is place.part), None)
    return "norm" if inner is None else f"norm of {phrase(Place('', inner, place.parent))}"


def _attention(place: Place) -> str:
    assert isinstance(place.part, Attention)
    return ATTENTIONS[place.part.over]


def _convolution(place: Place) -> str:
    return f"{_plain(place)} convolution"


def _plain(place: Place) -> str:
    return place.attribute.replace("feed_forward", "feed-forward").replace("_", " ")


WORDS: Mapping[type[nn.Module], str | Callable[[Place], str]] = {
    Attention: _attention,
    FeedForward: "feed-forward",
    GatedFeedForward: "feed-forward",
    Residual: _residual,
    Embedding: "embedding",
    Frames: "embedding",
    nn.Conv1d: _convolution,
    nn.Embedding: "",
    Linear: _linear,
    nn.Linear: _linear,
    **dict.fromkeys(NORM_TYPES, _norm),
    DotProduct: "",
    Additive: "",
    Window: "attention window",
    Rotary: "rotary positions",
    RelativeBias: "relative position bias",
    RelativeVectors: _plain,
    Disentangled: "relative positions",
    PositionVectors: "vectors",
}


def phrase(place: Place) -> str:
    """Describe one part within its layer."""
    named = next((WORDS[kind] for kind in type(place.part).__mro__ if kind in WORDS), _plain)
    return named if isinstance(named, str) else named(place)


def path_to(model: nn.Module, name: str) -> list[Place]:
    """Return the path from the model down to a part, as far as modules with these names exist."""
    found: list[Place] = []
    part = model
    for attribute in name.split("."):
        child = getattr(part, attribute, None)
        if not isinstance(child, nn.Module):
            break
        found.append(Place(attribute, child, part))
        part = child
    return found


def common_parent(one: str, other: str) -> str:
    """Return the name of the innermost module that contains two modules: `a.b.c` and `a.b.d` -> `a.b`."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return ".".join(own for own, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def name_of_sublayer(model: nn.Module, residual: str) -> str:
    """Return the name of the sublayer that a residual of a layer contains."""
    holder, _, _ = residual.rpartition(".")
    layer = model.get_submodule(holder)
    assert isinstance(layer, Layer)
    around = model.get_submodule(residual)
    inner = next(sublayer for sublayer, each in layer.sublayers if each is around)
    return next(f"{holder}.{own}" for own, child in layer.named_children() if child is inner)


def _ended_stack(place: Place) -> Stack | None:
    """Return the stack whose last norm this part is; None if there is none."""
    stacks = place.parent.stacks if isinstance(place.parent, Model) else ()
    return next((stack for stack in stacks if stack.norm is place.part), None)


def _layer(path: Sequence[Place]) -> tuple[str, Sequence[Place]]:
    """Return the layer, such as `decoder layer 1`, and the rest of the path; layers count from 0, as in names."""
    first = path[0]
    stack = first.parent.stack_of(first.attribute) if isinstance(first.parent, Model) else None
    at = next((at for at, place in enumerate(path) if isinstance(place.parent, nn.ModuleList)), 0)
    if at:
        layers = path[at - 1].attribute if stack is None else stack.side
        return f"{layers} layer {path[at].attribute}", path[at + 1 :]
    if stack is not None:
        return stack.side, path
    if getattr(first.part, "tag", None) == PROJECTION:
        facts = getattr(first.parent, "facts", None)
        return "encoder" if facts is not None and not facts.generates else "decoder", path
    return "", path


def describe(model: nn.Module, modules: Sequence[str]) -> str:
    """Describe modules: `decoder.1.attention.query` -> `decoder layer 1, self-attention, query`."""
    path = path_to(model, modules[0])
    if not path:
        return modules[0]
    layer, rest = _layer(path)
    phrases = list[str]()
    for place in rest:
        if place.attribute.isdigit() and phrases:  # of a list: `experts 3`
            phrases[-1] += f" {place.attribute}"
        else:
            phrases.append(phrase(place))
    others = [phrase(way[-1]) for way in (path_to(model, name) for name in modules[1:]) if way]
    if phrases and others:
        phrases[-1] = " and ".join([phrases[-1], *others])
    return ", ".join(dict.fromkeys(each for each in (layer, *phrases) if each))


def describe_state(tensor: StateTensor) -> str:
    """Describe a cache: `decoder layer 1, self-attention, cached keys`."""
    return f"decoder layer {tensor.layer}, {ATTENTIONS[tensor.owner]}, cached {tensor.role}s"
