"""Sizes of the weights of a bundle, by part of the model and by storage form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from txport.bundles.bundle import Bundle
from txport.bundles.declared import Initializer, read_initializers
from txport.bundles.manifest import Manifest

OTHERS = "all others"
MOST = 40  # parts that are shown one by one
LEAST = 0.002  # of all bytes; smaller parts are shown together


@dataclass
class Part:
    """One part of a model, such as a layer; `held`: its bytes by storage form, `tensors`: number of initializers."""

    name: str
    held: Counter[str] = field(default_factory=Counter)
    tensors: int = 0

    @property
    def bytes(self) -> int:
        """The total size in bytes."""
        return self.held.total()


def parts_of(bundle: Bundle) -> list[Part]:
    """Return the parts in the order of the graphs; weights shared by several graphs count once."""
    manifest = bundle.manifest
    found = dict[str, Part]()
    seen = set[tuple[str, int]]()
    kinds, names = _tables(manifest)
    for role in manifest.graphs:
        for each in read_initializers(bundle.file(role)):
            if each.place is not None and each.place in seen:
                continue
            if each.place is not None:
                seen.add(each.place)
            name = part_of(names.get(each.name) or _module(each))
            part = found.setdefault(name, Part(name))
            part.held[kinds.get(each.name, each.dtype)] += each.bytes
            part.tensors += 1
    return list(_shortened(found.values()))


def _tables(manifest: Manifest) -> tuple[dict[str, str], dict[str, str]]:
    """Map each initializer (weights and scales) to its storage form, and to a weight of the checkpoint in it."""
    kinds = dict[str, str]()
    names = dict[str, str]()
    for initializer, stored in manifest.weights.items():
        for name in (initializer, stored.scales, stored.lookup_scales, stored.lookup_zeros):
            if name is not None:
                names[name] = stored.weights[0]
                if stored.form is not None:
                    kinds[name] = stored.form.describe() if stored.is_quantised else "float32"
    return kinds, names


def _module(weight: Initializer) -> str:
    """Return the name of another exporter's weight, or the module path of the node that reads it."""
    return weight.reader.strip("/").replace("/", ".") if weight.reader else weight.name


def part_of(weight: str) -> str:
    """Return the layer or module of a weight, such as `decoder.2` of `decoder.2.attention.query.weight`."""
    words = weight.split(".")
    number = next((at for at, word in enumerate(words) if word.isdecimal()), None)
    if number is not None:
        return ".".join(words[: number + 1])
    return ".".join(words[:-1]) or weight


def _shortened(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the largest parts in their order, then the sum of the others as one part."""
    every = list(parts)
    total = sum(each.bytes for each in every)
    large = {each.name for each in sorted(every, key=lambda each: -each.bytes)[:MOST] if each.bytes >= LEAST * total}
    rest = Part(OTHERS)
    for each in every:
        if each.name in large:
            yield each
        else:
            rest.held.update(each.held)
            rest.tensors += each.tensors
    if rest.tensors:
        yield rest


def by_kind(parts: Iterable[Part]) -> Counter[str]:
    """Return the bytes of all parts by storage form."""
    total: Counter[str] = Counter()
    for each in parts:
        total.update(each.held)  # those of no bytes stay
    return total
