"""Pickles of options and tensors, as fairseq, OpenNMT-py and transformers write them."""

from __future__ import annotations

import struct
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile.case import Case, Command, Place
from tests.hostile.corpus.trainers import imported
from tests.hostile.corpus.values import NAME


def cases() -> Iterator[Case]:
    """Every pickle."""
    for trainer, file in PICKLES.items():
        edits = EDITS if trainer == "pickle" else {**EDITS, **OPTION_EDITS}
        yield from (Case(f"pickled/{trainer} {name}", _pickle(trainer, file, edit)) for name, edit in edits.items())
        yield from (Case(f"pickled/{trainer} {name}", _raw(trainer, file, raw)) for name, raw in RAW.items())


PICKLES = {"fairseq": "checkpoint_best.pt", "opennmt": "model_step_10.pt", "pickle": "pytorch_model.bin"}
Values = dict[str, Any]


def _pickle(base: str, name: str, edit: Callable[[Values, Values], object]) -> Callable[[Place], list[Command]]:
    """`edit` gets what the file holds, and its tensors."""

    def make(place: Place) -> list[Command]:
        import torch

        folder = place.base(base)
        values = torch.load(folder / name, weights_only=False)
        edit(values, values.get("model", values))
        torch.save(values, folder / name)
        return imported(folder, place)

    return make


def _raw(base: str, name: str, raw: Callable[[bytes, Place], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base(base)
        (folder / name).write_bytes(raw((folder / name).read_bytes(), place))
        return imported(folder, place)

    return make


def _tensor(change: Callable[[Any], Any]) -> Callable[[Values, Values], object]:
    def edit(values: Values, tensors: Values) -> None:
        name = next(name for name, each in tensors.items() if each.dim() == 2)
        tensors[name] = change(tensors[name])

    return edit


def _named(change: Callable[[Values], object]) -> Callable[[Values, Values], object]:
    """Options, where there are some; else the tensors."""

    def edit(values: Values, tensors: Values) -> None:
        options = values.get("args", values.get("opt"))
        change(vars(options) if isinstance(options, Namespace) else tensors)

    return edit


def _sparse(tensor: Any) -> Any:
    return tensor.to_sparse()


def _quantised(tensor: Any) -> Any:
    import torch

    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


EDITS: dict[str, Callable[[Values, Values], object]] = {
    "a sparse tensor": _tensor(_sparse),
    "a quantised tensor": _tensor(_quantised),
    "a tensor of whole numbers": _tensor(lambda each: each.long()),
    "a tensor of complex numbers": _tensor(lambda each: each.cfloat()),
    "a tensor of NaN": _tensor(lambda each: each * float("nan")),
    "a tensor of one number, seen 2**36 times": _tensor(lambda each: each[:1, :1].clone().expand(2**30, 64)),
    "a tensor of one row, seen 2**22 times": _tensor(lambda each: each[:1].clone().expand(2**22, -1)),
    "a tensor of no dims": _tensor(lambda each: each.sum()),
    "a tensor of no rows": _tensor(lambda each: each[:0]),
    "a tensor of many dims": _tensor(lambda each: each[(None,) * 50]),
    "a text for a tensor": _tensor(lambda each: "weights"),
    "a dict for a tensor": _tensor(lambda each: {"a": each}),
    "no tensors": lambda values, tensors: tensors.clear(),
    "names of numbers": lambda values, tensors: tensors.update({7: next(iter(tensors.values()))}),  # type: ignore[dict-item]
    "names of escapes": lambda values, tensors: tensors.update({NAME: next(iter(tensors.values()))}),
    "a name of 1 MB": lambda values, tensors: tensors.update({"a" * 1_000_000: next(iter(tensors.values()))}),
    "all as a list": lambda values, tensors: values.clear(),
}
OPTION_EDITS: dict[str, Callable[[Values, Values], object]] = {
    "options of tensors": _named(lambda options: options.update(heads=next(iter([_one()])))),
    "options of lists": _named(lambda options: options.update({name: [] for name in list(options)[:5]})),
    "options of null": _named(lambda options: options.update(dict.fromkeys(list(options)))),
    "options of 2**62": _named(
        lambda options: options.update({name: 2**62 for name, each in options.items() if type(each) is int})
    ),
    "options of texts": _named(
        lambda options: options.update({name: str(each) * 9 for name, each in options.items() if type(each) is int})
    ),
    "options of floats": _named(
        lambda options: options.update({name: 1e308 for name, each in options.items() if type(each) is int})
    ),
    "options of no names": _named(lambda options: options.update({7: 7})),
}


def _one() -> Any:
    import torch

    return torch.ones(1)


def _code(whole: bytes, place: Place) -> bytes:
    path = str(place.outside / "unpickled").encode()
    return b"cbuiltins\nopen\n(S'" + path + b"'\nS'w'\ntR."


RAW: dict[str, Callable[[bytes, Place], bytes]] = {
    "of nothing": lambda whole, place: b"",
    "of code": _code,
    "of a page": lambda whole, place: b"<html>404 not found</html>",
    "cut in the middle": lambda whole, place: whole[: len(whole) // 2],
    "cut by a byte": lambda whole, place: whole[:-1],
    "of 100,000 levels": lambda whole, place: b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "of a number of 2 GB": lambda whole, place: b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "of a text of 2**60": lambda whole, place: b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b".",
    "of a memo of 2**31": lambda whole, place: b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b".",
}
