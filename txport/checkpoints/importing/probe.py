"""Relations between the config and the tensors of an architecture, found by building small models.

Nothing here is specific to an architecture.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from txport.checkpoints.checkpoint import build_empty
from txport.checkpoints.weights.plan import first_names
from txport.checkpoints.weights.steps import Shape
from txport.errors import ConfigError
from txport.models import architecture
from txport.models.config import MOST_LAYERS
from txport.models.facts import Task
from txport.models.model import Model

Values = dict[str, Any]
Fields = tuple[str, ...]
Place = tuple[str, int]  # a tensor and an axis
Product = tuple[int, Fields]  # a factor, and the config fields that it is multiplied by
LAYERS = 1  # of the small models
UNSEEN = ("dropout",)  # fields that only matter in training
HEADS = ("heads", "key_heads")
SIZE = "head_size"
NORM = "norm"  # a norm after the last layer is usual for norms before sublayers only


@dataclass(frozen=True)
class Variant:
    """One set of tensors that a model of an architecture can have, and the config values that lead to it."""

    architecture: str
    chosen: tuple[tuple[str, object], ...]
    shapes: tuple[tuple[str, Shape], ...]
    aliases: tuple[tuple[str, str], ...]  # further name of a tied tensor -> first name

    def values(self, **changed: object) -> Values:
        """Return the values of a small config with these tensors, some of them changed."""
        return {**_base(self.architecture), **dict(self.chosen), **changed}

    def changed(self, **changed: object) -> Variant | None:
        """Return the variant with some values changed; None if they are not valid together."""
        return _variant(self.architecture, tuple({**dict(self.chosen), **changed}.items()))

    def others(self, field: str, values: Sequence[object]) -> list[Variant]:
        """Return the variants with these values of a field, where they are valid."""
        return [each for value in values if (each := self.changed(**{field: value})) is not None]

    def has_tensors_of(self, other: Variant) -> bool:
        """Return True if both have the same tensors, tied alike."""
        return (self.shapes, self.aliases) == (other.shapes, other.aliases)


def closest(name: str, score: Callable[[Variant], float]) -> Variant:
    """Return the variant with the highest score, found by changing one choice of the config at a time."""
    fields = [(field, values) for field, values in _choices(name) if _changes_names(name, field, values)]
    best = _variant(name, tuple((field, _base(name)[field]) for field, _ in fields))
    assert best is not None
    while True:
        others = [each for field, values in fields for each in best.others(field, values)]
        found = max(others, key=score, default=best)
        if score(found) <= score(best):
            return best
        best = found


@cache
def _variant(name: str, chosen: tuple[tuple[str, object], ...]) -> Variant | None:
    """Return the variant with these config values; None if they are not valid together."""
    model = _built(name, {**_base(name), **dict(chosen)})
    if model is None:
        return None
    shapes = tuple((each, tuple(tensor.shape)) for each, tensor in model.named_parameters())
    aliases = tuple((each, first) for each, first in first_names(model).items() if each != first)
    return Variant(name, chosen, shapes, aliases)


def decided(variant: Variant) -> Values:
    """Return the config values that follow from the tensors: with any other value, the tensors would differ."""
    chosen = dict(variant.chosen)
    return {
        field: chosen[field]
        for field, values in _choices(variant.architecture)
        if field in chosen and sum(map(variant.has_tensors_of, variant.others(field, values))) == 1
    }


def task_of(name: str) -> Task:
    """Return the task of an architecture's models."""
    model = _built(name, _base(name))
    assert model is not None
    return model.facts.task


@cache
def dims_of(variant: Variant) -> tuple[dict[Place, Product], dict[str, str]]:
    """Return the product of config fields for each (tensor, axis), and fields that must equal another field.

    Each size of the config is doubled in turn; it is a factor of the dims that double.
    """
    base = variant.values()
    sizes = [field for field, value in base.items() if type(value) is int and value and _is_size(variant, field)]
    doubled = {field: variant.changed(**{field: 2 * base[field]}) for field in sizes}
    same = {}
    for first, other in itertools.combinations([field for field in sizes if doubled[field] is None], 2):
        together = variant.changed(**{first: 2 * base[first], other: 2 * base[other]})
        if together is not None and base[first] == base[other]:
            doubled[first] = together
            same[other] = first
    fields_of: dict[Place, Fields] = defaultdict(tuple)
    for field, larger in doubled.items():
        for (name, before), (_, after) in zip(variant.shapes, larger.shapes if larger else (), strict=False):
            for axis, (old, new) in enumerate(zip(before, after, strict=True)):
                if new == 2 * old:
                    fields_of[name, axis] += (field,)
    shapes = dict(variant.shapes)
    return {
        (name, axis): (shapes[name][axis] // math.prod(base[field] for field in fields), fields)
        for (name, axis), fields in fields_of.items()
    }, same


def layer_fields(name: str) -> dict[str, str]:
    """Return the config fields with the number of layers: "encoder" or "decoder" -> field."""
    fields = dataclasses.fields(architecture.find(name).config)
    counting = [each.name for each in fields if each.metadata.get("at most") == MOST_LAYERS]
    return {side: field for field in counting for side in ("encoder", "decoder") if field.startswith(side)}


class Open(NamedTuple):
    """A config field that does not follow from tensors: a question about its value, and its usual value."""

    question: str
    usual: object


def open_fields(
    variant: Variant, known: Mapping[str, object], products: Mapping[Fields, int]
) -> Iterator[tuple[str, Open]]:
    """Yield the config fields that don't follow from tensors, but not rare ones or those that are empty as usual.

    `known` are the known fields, `products` the known products of fields.
    """
    kind = architecture.find(variant.architecture).config
    are_of_width = {*products.values()} == {known.get("d_model")}
    for each in dataclasses.fields(kind):
        around = {fields: size for fields, size in products.items() if each.name in fields}
        is_derived = around and each.default == 0 and are_of_width  # 0 stands for a value that the shapes agree with
        if each.name in {*known, *kind.RARE, *UNSEEN} or each.default in (None, ()) or is_derived:
            continue
        words = ["true", "false"] if each.name in _yes_or_no(variant.architecture) else ["which number"]
        words = list(kind.choices().get(each.name, words))
        whole: object = next((size for fields, size in around.items() if SIZE in fields), None)
        whole = known.get("d_model") if whole is None and each.name == HEADS[0] else whole
        divisor = f"; it divides {whole}" if each.name in HEADS and whole is not None else ""
        yield (
            each.name,
            Open(f"{' or '.join(words)}?{divisor}", None if divisor else _usual(variant, each, known, around)),
        )


def _usual(
    variant: Variant, field: dataclasses.Field[Any], known: Mapping[str, object], around: Mapping[Fields, int]
) -> Any:
    """Return the usual value of a field that no tensor tells, if it fits what is known; None if there is none."""
    value = field.default
    is_of_training = field.name.endswith(("_id", "_ids")) or field.name == "activation"  # differs between trainings
    if is_of_training or value is dataclasses.MISSING:
        return None
    if field.name == NORM and known.get("final_norm") is not False:
        return None
    if any(not value or size % value for size in around.values()):
        return None
    if any(other.shapes != variant.shapes for other in variant.others(field.name, [value])):
        return None  # the sizes were found with another value
    own = {name: each for name, each in known.items() if each is not None}
    try:
        architecture.find(variant.architecture).config.from_dict(variant.values(**{**own, field.name: value}))
    except ConfigError as error:
        if re.search(rf"\b{field.name}\b", str(error)):
            return None
    return value


def _is_size(variant: Variant, field: str) -> bool:
    fields = {each.name: each for each in dataclasses.fields(architecture.find(variant.architecture).config)}
    return "at least" in fields[field].metadata and fields[field].metadata.get("at most") != MOST_LAYERS


@cache
def _base(name: str) -> Values:
    """Return the values of a small config of usual parts.

    A choice of None, which follows other fields, is replaced by its value.
    """
    found = architecture.find(name)
    few = dict.fromkeys(layer_fields(name).values(), LAYERS)
    presets = [{**config.to_dict(), **few} for config in found.presets.values()]
    possible = [values for values in presets if _built(name, values) is not None]  # others have a value per layer
    usual = {each.name: each.default for each in dataclasses.fields(found.config) if each.name in found.config.RARE}
    rare = [sum(values.get(field, value) != value for field, value in usual.items()) for values in possible]
    sizes = [sum(each for each in values.values() if type(each) is int) for values in possible]
    values = min(zip(rare, sizes, range(len(possible)), possible, strict=True))[3]
    names = _names_of(_built(name, values))
    for field in _yes_or_no(name):
        if values[field] is None:
            explicit = (value for value in (False, True) if _names_of(_built(name, {**values, field: value})) == names)
            values[field] = next(explicit, None)
    return values


def _yes_or_no(name: str) -> list[str]:
    """Return the boolean fields, including those that can be None; rare ones keep their defaults."""
    config = architecture.find(name).config
    hints = {field: hint for field, hint in get_type_hints(config).items() if field not in config.RARE}
    return [field for field, hint in hints.items() if hint is bool or set(get_args(hint)) == {bool, NoneType}]


def _choices(name: str) -> list[tuple[str, tuple[object, ...]]]:
    """Return the fields with a fixed set of values, and these values; rare ones keep their defaults."""
    config = architecture.find(name).config
    decided = [(field, (False, True)) for field in _yes_or_no(name)]
    return [*decided, *((field, values) for field, values in config.choices().items() if field not in config.RARE)]


@cache
def _changes_names(name: str, field: str, values: tuple[object, ...]) -> bool:
    """Return True if another value of a field changes the names or the ties of a model's tensors."""
    built = [_built(name, {**_base(name), field: value}) for value in values]
    return len({_names_of(model) for model in built if model is not None}) > 1


def _built(name: str, values: Values) -> Model | None:
    """Return a model with these config values; None if they are not valid together."""
    try:
        config = architecture.find(name).config.from_dict(values)
    except ConfigError:
        return None
    return build_empty(config)


def _names_of(model: Model | None) -> frozenset[tuple[str, str]]:
    """Return the names of a model's tensors, each with the first name of the same tensor."""
    return frozenset(first_names(model).items()) if model is not None else frozenset()
