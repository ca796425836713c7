"""Relations between the config and the tensors of an architecture, found by building small models.

Nothing here is specific to an architecture.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch

from txport.audio.spectrogram import drawn_features
from txport.checkpoints.checkpoint import build_empty
from txport.checkpoints.weights.plan import first_names
from txport.checkpoints.weights.steps import Shape
from txport.errors import ConfigError
from txport.models import architecture
from txport.models.audio import Features
from txport.models.config import MOST_LAYERS
from txport.models.facts import Task
from txport.models.model import Model

Values = dict[str, Any]
LAYERS, TOKENS = 1, 48  # of the small models
Place = tuple[str, int]  # a tensor and an axis
Product = tuple[int, tuple[str, ...]]  # a factor, and the config fields that it is multiplied by
UNSEEN = ("dropout",)  # fields that only matter in training
HEADS = ("heads", "key_heads")
SIZE = "head_size"
NORM = "norm"  # a norm after the last layer is usual for norms before sublayers only


@dataclass(frozen=True)
class Variant:
    """One set of tensors that a model of an architecture can have, and the config values that lead to it."""

    architecture: str
    values: tuple[tuple[str, Any], ...]
    shapes: tuple[tuple[str, Shape], ...]
    aliases: tuple[tuple[str, str], ...]  # further name of a tied tensor -> first name


def closest(name: str, score: Callable[[Variant], float]) -> Variant:
    """Return the variant with the highest score, found by changing one choice of the config at a time."""
    base = _base(name)
    fields = [each for each in _choices(name) if _changes_names(name, each)]
    best = _variant(name, tuple((field, base[field]) for field, _ in fields))
    assert best is not None
    while True:
        chosen = dict(best.values)
        others = [
            _variant(name, tuple({**chosen, field: value}.items()))
            for field, values in fields
            for value in values
            if value != chosen[field]
        ]
        found = max((each for each in others if each is not None), key=score, default=best)
        if score(found) <= score(best):
            return best
        best = found


@cache
def _variant(name: str, values: tuple[tuple[str, Any], ...]) -> Variant | None:
    """Return the variant with these config values; None if they are not valid together."""
    model = _built(name, {**_base(name), **dict(values)})
    if model is None:
        return None
    shapes = tuple((each, tuple(tensor.shape)) for each, tensor in model.named_parameters())
    aliases = tuple((each, first) for each, first in first_names(model).items() if each != first)
    return Variant(name, values, shapes, aliases)


def decided(variant: Variant) -> Values:
    """Return the config values that follow from the tensors: with any other value, the tensors would differ."""
    chosen = dict(variant.values)
    found: Values = {}
    for field, values in _choices(variant.architecture):
        if field in chosen:
            others = [_variant(variant.architecture, tuple({**chosen, field: value}.items())) for value in values]
            alike = [each for each in others if each is not None and _tensors(each) == _tensors(variant)]
            found |= {field: chosen[field]} if len(alike) == 1 else {}
    return found


def _tensors(variant: Variant) -> tuple[object, ...]:
    return variant.shapes, variant.aliases


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
    base = {**_base(variant.architecture), **dict(variant.values)}
    before = dict(variant.shapes)
    made = dict[Place, tuple[str, ...]]()
    same = dict[str, str]()
    sizes = [
        field for field in base if _is_size(variant.architecture, field) and type(base[field]) is int and base[field]
    ]
    alone = {field: _built(variant.architecture, {**base, field: 2 * base[field]}) for field in sizes}
    bound = [field for field, model in alone.items() if model is None]
    for first, other in itertools.combinations(bound, 2):
        together = _built(variant.architecture, {**base, first: 2 * base[first], other: 2 * base[other]})
        if together is not None and base[first] == base[other]:
            alone[first] = together
            same[other] = first
    for field, model in alone.items():
        for name, shape in before.items() if model is not None else ():
            after = tuple(model.get_parameter(name).shape) if model is not None else shape
            for axis, (old, new) in enumerate(zip(shape, after, strict=True)):
                if new == 2 * old:
                    made[name, axis] = (*made.get((name, axis), ()), field)
    return {
        (name, axis): (before[name][axis] // math.prod(base[field] for field in fields), fields)
        for (name, axis), fields in made.items()
    }, same


def layer_fields(name: str) -> dict[str, str]:
    """Return the config fields with the number of layers: "encoder" or "decoder" -> field."""
    fields = dataclasses.fields(architecture.find(name).config)
    counting = [each.name for each in fields if each.metadata.get("at most") == MOST_LAYERS]
    return {side: field for field in counting for side in ("encoder", "decoder") if field.startswith(side)}


@dataclass(frozen=True)
class Open:
    """A config field that does not follow from tensors: a question about its value, and its usual value."""

    field: str
    question: str
    usual: Any = None


def open_fields(variant: Variant, known: Mapping[str, Any], products: Mapping[tuple[str, ...], int]) -> Iterator[Open]:
    """Yield the config fields that don't follow from tensors.

    `known` are the known fields, `products` the known products of fields. Fields that change neither the outputs of a
    model nor its facts are left out.
    """
    kind = architecture.find(variant.architecture).config
    base = {**_base(variant.architecture), **dict(variant.values)}
    choices = kind.choices()
    others = dict(_choices(variant.architecture))
    for each in dataclasses.fields(kind):
        if each.name in known or each.name in UNSEEN:
            continue
        values = others.get(each.name, _nearby(base.get(each.name, [])))
        if any(_matters(variant, each.name, other) for other in values):
            words = ("true", "false") if each.name in _yes_or_no(variant.architecture) else ("which number",)
            kinds = choices.get(each.name, words)
            around = {fields: size for fields, size in products.items() if len(fields) > 1 and each.name in fields}
            whole = next((size for fields, size in around.items() if SIZE in fields), None)
            whole = known.get("d_model") if whole is None and each.name == HEADS[0] else whole
            divisor = f"; it divides {whole}" if each.name in HEADS and whole is not None else ""
            is_told = any(_changes_shapes(variant, each.name, other) for other in values)
            is_contradicted = is_told and base.get(each.name) != each.default  # sizes were found with the value in base
            usual = None if is_contradicted or divisor else _usual(variant, each, known, around)
            yield Open(each.name, f"{' or '.join(kinds)}?{divisor}", usual)


def _usual(
    variant: Variant, field: dataclasses.Field[Any], known: Mapping[str, object], around: Mapping[tuple[str, ...], int]
) -> Any:
    """Return the usual value of a field that no tensor tells, if it fits the known values; None if there is none."""
    value = field.default
    if _is_of_training(field.name) or value is dataclasses.MISSING:
        return None
    if field.name == NORM and known.get("final_norm") is not False:
        return None
    if any(not value or size % value for size in around.values()):
        return None
    own = {name: each for name, each in known.items() if each is not None}
    try:
        architecture.find(variant.architecture).config.from_dict(
            {**_base(variant.architecture), **dict(variant.values), **own, field.name: value}
        )
    except ConfigError as error:
        if re.search(rf"\b{field.name}\b", str(error)):
            return None
    return value


def _is_of_training(field: str) -> bool:
    """True for fields whose values differ from one training to the next: special tokens, and the activation."""
    return field.endswith(("_id", "_ids")) or field == "activation"


def _changes_shapes(variant: Variant, field: str, value: object) -> bool:
    """Return True if the shapes of a model's tensors depend on a field, whose usual value they may contradict."""
    model = _built(variant.architecture, {**_base(variant.architecture), **dict(variant.values), field: value})
    return model is not None and {(n, tuple(t.shape)) for n, t in model.named_parameters()} != {*variant.shapes}


def _nearby(value: object) -> tuple[Any, ...]:
    """Return other values for a number or a list of integers; () for anything else."""
    if isinstance(value, tuple) and value and type(value[0]) is int:
        return ((*value, value[-1] + 1), (value[0] + 1,))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ()
    return (value * 2, value + 1) if value else (1, 2)


@cache
@torch.no_grad()
def _matters(variant: Variant, field: str, value: object) -> bool:
    """Return True if another value of a field changes the outputs, the tensors or the facts of a model."""
    base = {**_base(variant.architecture), **dict(variant.values)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one = _built(variant.architecture, base, "cpu")
        other = _built(variant.architecture, {**base, field: value}, "cpu")
    if one is None or other is None:
        return False
    for parameter in one.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    weights = one.state_dict()
    if one.facts != other.facts:
        return True
    if dict(one.named_parameters()).keys() != dict(other.named_parameters()).keys():
        return True
    if any(tensor.shape != weights[name].shape for name, tensor in other.state_dict().items() if name in weights):
        return True
    other.load_state_dict({name: weights[name] for name, _ in other.named_parameters()}, strict=False)
    return not all(map(torch.equal, _outputs(one), _outputs(other)))


def _outputs(model: Model) -> list[torch.Tensor]:
    """Return the outputs for a sequence that is long enough to show effects of distances between tokens."""
    model.eval()
    facts = model.facts
    length = min(TOKENS, facts.vocabulary.longest, facts.writes.longest)
    ids = torch.arange(length)[None] % min(facts.vocabulary.size, facts.writes.size)
    if isinstance(facts.source, Features):
        features = torch.from_numpy(drawn_features(facts.source, 0))[None]
        return [model(features, torch.tensor([facts.source.longest]), ids)]
    if facts.is_encoder_decoder:
        return [model(ids, torch.tensor([length]), ids)]
    mask = torch.ones_like(ids, dtype=torch.bool)
    if not facts.generates:
        return list(model.infer(ids, mask))
    return [model.extend(ids, mask, torch.arange(length)[None], model.empty_state(1)).logits]


def _is_size(name: str, field: str) -> bool:
    fields = {each.name: each for each in dataclasses.fields(architecture.find(name).config)}
    return "at least" in fields[field].metadata and fields[field].metadata.get("at most") != MOST_LAYERS


@cache
def _base(name: str) -> Values:
    """Return the values of a small config; a choice of None, which follows other fields, is replaced by its value."""
    found = architecture.find(name)
    few = dict.fromkeys(layer_fields(name).values(), LAYERS)
    presets = [{**config.to_dict(), **few} for config in found.presets.values()]
    possible = [values for values in presets if _built(name, values) is not None]  # others have a value per layer
    values = min(possible, key=lambda values: sum(each for each in values.values() if type(each) is int))
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


def _choices(name: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the fields with a fixed set of values, and these values; rare ones keep their defaults."""
    config = architecture.find(name).config
    decided = [(field, (False, True)) for field in _yes_or_no(name)]
    return [*decided, *((field, values) for field, values in config.choices().items() if field not in config.RARE)]


@cache
def _changes_names(name: str, choice: tuple[str, tuple[Any, ...]]) -> bool:
    """Return True if another value of a field changes the names or the ties of a model's tensors."""
    field, values = choice
    built = [_built(name, {**_base(name), field: value}) for value in values]
    return len({_names_of(model) for model in built if model is not None}) > 1


def _built(name: str, values: Values, device: str = "meta") -> Model | None:
    """Return a model with these config values; None if they are not valid together."""
    found = architecture.find(name)
    try:
        config = found.config.from_dict(values)
    except ConfigError:
        return None
    return build_empty(config) if device == "meta" else found.build(config)


def _names_of(model: Model | None) -> frozenset[tuple[str, str]]:
    """Return the names of a model's tensors, each with the first name of the same tensor."""
    return frozenset(first_names(model).items()) if model is not None else frozenset()
