"""Checkpoints: weights, configs and pickles."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command
from tests.hostile.corpus.values import DEEP_LIST, DEEP_OBJECT, HUGE_NUMBER, NAME, spell
from txport.models.names import CONFIG, RULES, WEIGHTS

Header = dict[str, Any]

PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl", "optimizer.bin")


def cases() -> Iterator[Case]:
    """Every checkpoint."""
    yield from (Case(f"checkpoints/weights {name}", _weights(change)) for name, change in BYTES.items())
    yield from (Case(f"checkpoints/header {name}", _header(change)) for name, change in HEADERS.items())
    yield from (Case(f"checkpoints/weights with {name}", _tensors(change)) for name, change in TENSORS.items())
    yield Case("checkpoints/pickles alone", _pickles)
    yield Case("checkpoints/pickles under the name of the weights", _pickle)
    yield Case("checkpoints/pickles beside the weights", _pickles_beside)
    yield Case("checkpoints/a name of escapes", _named)
    yield Case("checkpoints/weights alone", _alone)
    yield from (Case(f"checkpoints/{name}", _node(file, change)) for name, (file, change) in NODES.items())


def readers(checkpoint: Path, place: Place, *, codes: tuple[int, ...] = (BAD,)) -> list[Command]:
    """The commands that read a checkpoint; all but `export` and `matrix` hold it against that of the bundle."""
    bundle = place.sound.bundle("portable")
    parity = ("parity", bundle, "--checkpoint", checkpoint, "--runtime", "ort")
    files = ("--report", place.out / "r.json", "--junit", place.out / "j.xml", "--markdown", place.out / "m.md")
    matrix = ("matrix", checkpoint, "--target", "portable", "--precision", "fp32", "--runtime", "ort")
    more = [command(*matrix, codes=(*codes, FAILED) if GOOD in codes else codes)] if codes == (BAD,) else []
    return [
        command("export", checkpoint, place.out / "made", codes=(*codes, FAILED) if GOOD in codes else codes),
        command("run", bundle, "bad", "--runtime", "torch", "--threads", 1, "--checkpoint", checkpoint, codes=(BAD,)),
        command(*parity, *files, codes=(BAD,)),
        command(*parity, "--bisect", codes=(BAD,)),
        *more,
    ]


def _weights(change: Callable[[bytes], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        checkpoint = place.checkpoint()
        file = checkpoint / WEIGHTS
        file.write_bytes(change(file.read_bytes()))
        return readers(checkpoint, place)

    return make


def split_weights(whole: bytes) -> tuple[Header, bytes]:
    """The header of a safetensors file, and its data."""
    (size,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + size]), whole[8 + size :]


def join_weights(header: str, data: bytes) -> bytes:
    """A safetensors file."""
    raw = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + data


def _header(change: Callable[[Header], None]) -> Callable[[Place], list[Command]]:
    def altered(whole: bytes) -> bytes:
        header, data = split_weights(whole)
        change(header)
        return join_weights(spell(json.dumps(header)), data)

    return _weights(altered)


def _tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        import torch
        from safetensors.torch import load_file, save_file

        checkpoint = place.checkpoint()
        tensors: dict[str, torch.Tensor] = load_file(checkpoint / WEIGHTS)
        change(tensors)
        save_file(tensors, checkpoint / WEIGHTS)
        return readers(checkpoint, place)

    return make


def planted(place: Place) -> bytes:
    """A pickle that leaves a file in a place that must stay as it is, when it is read."""
    path = str(place.outside / "unpickled").encode()
    return b"cbuiltins\nopen\n(S'" + path + b"'\nS'w'\ntR."


def _pickles(place: Place) -> list[Command]:
    checkpoint = place.checkpoint()
    (checkpoint / WEIGHTS).unlink()
    for name in PICKLES:
        (checkpoint / name).write_bytes(planted(place))
    return readers(checkpoint, place)


def _pickle(place: Place) -> list[Command]:
    checkpoint = place.checkpoint()
    (checkpoint / WEIGHTS).write_bytes(planted(place))
    return readers(checkpoint, place)


def _alone(place: Place) -> list[Command]:
    """Weights that nothing describes, some of whose names are hostile."""
    from safetensors.torch import load_file, save_file

    checkpoint = place.checkpoint()
    (checkpoint / CONFIG).unlink()
    tensors = load_file(checkpoint / WEIGHTS)
    save_file({**tensors, NAME: _one(), "a'\"\n[[rule]]": _one(), "layers.0.(": _one()}, checkpoint / WEIGHTS)
    return [
        command("import", checkpoint, codes=[BAD]),
        command("import", checkpoint, "--draft-map", place.out / RULES, codes=[BAD]),
        command("import", place.outside / "nothing", "--draft-map", place.out / RULES, codes=[BAD]),
    ]


def _pickles_beside(place: Place) -> list[Command]:
    checkpoint = place.checkpoint()
    for name in PICKLES:
        (checkpoint / name).write_bytes(planted(place))
    return [command("export", checkpoint, place.out / "made", codes=[GOOD])]


def _named(place: Place) -> list[Command]:
    """The folder's name becomes the name of the checkpoint in bundles and reports."""
    checkpoint = place.checkpoint("\x1b[31mred\u202e<img src=x onerror=alert(1)>|`a`")
    pages = ("--markdown", place.out / "m.md", "--html", place.out / "m.html", "--report", place.out / "r.json")
    matrix = ("matrix", checkpoint, "--target", "portable", "--precision", "fp32", "--runtime", "ort")
    made = place.out / "made"
    files = ("--report", place.out / "r.json", "--junit", place.out / "j.xml", "--markdown", place.out / "m.md")
    return [
        command("export", checkpoint, made, codes=[GOOD]),
        command("inspect", made, codes=[GOOD]),
        command("inspect", made, "--json", codes=[GOOD]),
        command("verify", made, codes=[GOOD]),
        command("parity", made, codes=[BAD]),
        command("parity", made, "--checkpoint", checkpoint, "--runtime", "ort", *files, codes=[GOOD]),
        command("parity", made, "--checkpoint", place.sound.checkpoint, *files, codes=[GOOD]),
        command(*matrix, *pages, codes=[GOOD]),
    ]


def _node(name: str, change: Callable[[Path], object]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        checkpoint = place.checkpoint()
        (checkpoint / name).unlink()
        change(checkpoint / name)
        return readers(checkpoint, place)

    return make


NODES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "weights as an endless device": (WEIGHTS, lambda file: file.symlink_to("/dev/zero")),
    "weights as a link to itself": (WEIGHTS, lambda file: file.symlink_to(file)),
    "weights that are missing": (WEIGHTS, lambda file: None),
    "config as an endless device": (CONFIG, lambda file: file.symlink_to("/dev/zero")),
    "config that is missing": (CONFIG, lambda file: None),
}

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "of a header of 100 GB": lambda whole: struct.pack("<Q", 100 << 30) + whole[8:],
    "of a header of all": lambda whole: struct.pack("<Q", 2**64 - 1) + whole[8:],
    "cut in the data": lambda whole: whole[:-1_000],
    "with more at the end": lambda whole: whole + b"more",
    "of a header that is no JSON": lambda whole: join_weights("no JSON", b""),
    "of a header of 200,000 levels": lambda whole: join_weights(spell(f'{{"a": "{DEEP_LIST}"}}'), b""),
    "of a header that is a list": lambda whole: join_weights("[]", b""),
    "as a page": lambda whole: b"<!DOCTYPE html><html>404 not found</html>" * 10,
    "as a pointer of Git LFS": lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
}


def _first(header: Header) -> Any:
    return header[next(name for name in header if name != "__metadata__")]


HEADERS: dict[str, Callable[[Header], None]] = {
    "with overlapping offsets": lambda header: _first(header).update(data_offsets=[0, 8]),
    "with offsets the other way": lambda header: _first(header).update(
        data_offsets=_first(header)["data_offsets"][::-1]
    ),
    "with offsets beyond the end": lambda header: _first(header).update(data_offsets=[0, 2**62]),
    "with offsets of 5,000 digits": lambda header: _first(header).update(data_offsets=[0, HUGE_NUMBER]),
    "with a type of escapes": lambda header: _first(header).update(dtype=NAME),
    "with an overflowing shape": lambda header: _first(header).update(shape=[2**40, 2**40]),
    "with a negative shape": lambda header: _first(header).update(shape=[-1]),
    "with a name of escapes": lambda header: header.update(
        {NAME: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    ),
    "with metadata of 200,000 levels": lambda header: header.update(__metadata__=DEEP_OBJECT),
}


def _one() -> Any:
    import torch

    return torch.zeros(1)


TENSORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "NaN": lambda tensors: next(iter(tensors.values())).fill_(float("nan")),
    "one of escapes": lambda tensors: tensors.update({NAME: _one()}),
    "10,000 more": lambda tensors: tensors.update({f"layer.{number}.weight": _one() for number in range(10_000)}),
    "complex numbers": lambda tensors: tensors.update({name: value.cfloat() for name, value in tensors.items()}),
}
