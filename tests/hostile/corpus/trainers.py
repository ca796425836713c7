"""Models of other trainers: archives of arrays, and binary files with lengths."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.case import BAD, GOOD, Case, Command, Place, command
from tests.hostile.corpus.goldens import Members, npy, read_members, write_members
from tests.hostile.corpus.values import NAME

BOMB = 300_000_000  # bytes that a member unfolds to
OPTIONS = "special:model.yml.npy"
EITHER = (GOOD, BAD)


def cases() -> Iterator[Case]:
    """Every model."""
    yield from (Case(f"trainers/Marian {name}", _marian(change)) for name, change in ARCHIVES.items())
    yield from (Case(f"trainers/Marian options {name}", _marian(_yaml(text))) for name, text in YAML.items())
    yield from (Case(f"trainers/Marian {name}", _beside(*what)) for name, what in BESIDE.items())
    yield from (Case(f"trainers/CTranslate2 {name}", _binary(change)) for name, change in BINARIES.items())
    yield from (Case(f"trainers/CTranslate2 {name}", _vocabulary(text)) for name, text in VOCABULARIES.items())
    yield Case("trainers/two models", _two)


def imported(folder: Path, place: Place, codes: tuple[int, ...] = (BAD,)) -> list[Command]:
    """The table of a model, and the model as one of ours."""
    return [command("import", folder, codes=codes), command("import", folder, place.out / "made", codes=codes)]


# Marian


def _marian(change: Callable[[Path], object]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base("marian")
        change(folder / "model.npz")
        return imported(folder, place)

    return make


def _members(change: Callable[[Members], object]) -> Callable[[Path], None]:
    def edit(file: Path) -> None:
        members = read_members(file)
        change(members)
        write_members(file, members)

    return edit


def _first(shape: str, dtype: str, body: bytes = bytes(64)) -> Callable[[Path], None]:
    return _members(lambda members: members.update({next(iter(members)): npy(shape, dtype, body)}))


def _bomb(file: Path) -> None:
    """An array of zeros in little room."""
    members = read_members(file)
    header = npy(f"({BOMB // 4},)", "<f4")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, whole in list(members.items())[1:]:
            archive.writestr(name, whole)
        with archive.open(next(iter(members)), "w", force_zip64=True) as stream:
            stream.write(header)
            for _ in range(BOMB // 10**7):
                stream.write(bytes(10**7))


def _twice(file: Path) -> None:
    members = read_members(file)
    with zipfile.ZipFile(file, "w") as archive:
        for name, whole in (*members.items(), *list(members.items())[:1]):
            archive.NameToInfo.pop(name, None)
            archive.writestr(name, whole)


def _encrypted(file: Path) -> None:
    """As zip has it, by a flag of each member."""
    whole = bytearray(file.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = whole.find(mark)
        while at >= 0:
            whole[at + offset] |= 1
            at = whole.find(mark, at + 4)
    file.write_bytes(bytes(whole))


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(change(file.read_bytes()))


ARCHIVES: dict[str, Callable[[Path], object]] = {
    "nothing": _bytes(lambda whole: b""),
    "a page": _bytes(lambda whole: b"<html>404 not found</html>"),
    "cut in the middle": _bytes(lambda whole: whole[: len(whole) // 2]),
    "cut by a byte": _bytes(lambda whole: whole[:-1]),
    "a bomb": _bomb,
    "a member twice": _twice,
    "encrypted": _encrypted,
    "no options": _members(lambda members: members.pop(OPTIONS)),
    "options alone": _members(lambda members: [members.pop(name) for name in list(members) if name != OPTIONS]),
    "an array of 7 TiB": _first("(1000000, 1000000)", "<f8"),
    "an array that overflows": _first("(4294967296, 4294967296)", "<f4"),
    "an array of a negative size": _first("(-4, 4)", "<f4"),
    "an array of nothing of much": _first("(0, 1099511627776)", "<f4", b""),
    "an array of objects": _first("(1,)", "|O", b"cbuiltins\nopen\n(S'pickled'\nS'w'\ntR."),
    "an array of texts": _first("(2,)", "<U8"),
    "an array of dates": _first("(8,)", "<M8[D]"),
    "an array of complex numbers": _first("(4,)", "<c16"),
    "an array of big ends": _first("(16,)", ">f4"),
    "an array of fields": _members(
        lambda members: members.update({next(iter(members)): npy("(8,)", "<f8").replace(b"'<f8'", b"[('a','<f8')]")})
    ),
    "an array of version 9": _members(
        lambda members: members.update({next(iter(members)): b"\x93NUMPY\x09\x00" + bytes(100)})
    ),
    "a header of code": _members(
        lambda members: members.update({next(iter(members)): npy("(1,)", "<f4").replace(b"(1,)", b"__import__('os')")})
    ),
    "a header of brackets": _members(
        lambda members: members.update({next(iter(members)): npy("(" * 9_000 + ")" * 9_000, "<f4")})
    ),
    "a name that leads out": _members(lambda members: members.update({"../../outside/a.npy": npy("(1,)", "<f4")})),
    "a name of escapes": _members(lambda members: members.update({f"{NAME}.npy": npy("(16,)", "<f4", bytes(64))})),
    "a name of a number": _members(lambda members: members.update({"7": b"7"})),
    "2,000 members": _members(
        lambda members: members.update({f"a{number}.npy": npy("(1,)", "<f4", bytes(4)) for number in range(2_000)})
    ),
}


def _yaml(text: str) -> Callable[[Path], None]:
    raw = text.encode("utf-8", "surrogatepass") + b"\0"
    return _members(lambda members: members.update({OPTIONS: npy(f"({len(raw)},)", "|i1", raw)}))


def _options(**changes: Any) -> str:
    from tests.trainers.marian import PLAIN

    return json.dumps({**PLAIN, **{name.replace("_", "-"): each for name, each in changes.items()}})


YAML = {
    "of nothing": "",
    "of a list": "[1, 2]",
    "of bytes": "\x00\x01\x02",
    "of a lone surrogate": "a: \ud800",
    "of 20,000 levels": "a: " + "[" * 20_000,
    "of aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "of tags": "a: !!python/object/apply:os.system ['true']\n",
    "of a number of 9,000 digits": "dim-emb: " + "9" * 9_000,
    "of a key that is a list": "? [a]\n: b\n",
    "of a key twice": "type: transformer\ntype: transformer\n",
    "of a date": "type: 2017-06-12\n",
    "of 1 MB": "a: " + "x" * 1_000_000,
    "of 2 MB": "a: " + "x" * 2_000_000,
    "of 30,000 keys": "".join(f"a{number}: 1\n" for number in range(30_000)),
    "of merges": "<<: {type: transformer}\n",
    "of a width of 2**40": _options(dim_emb=2**40),
    "of a width of text": _options(dim_emb="16"),
    "of a width of NaN": _options(dim_emb=".nan").replace('".nan"', ".nan"),
    "of a width of null": _options(dim_emb=None),
    "of a billion layers": _options(enc_depth=10**9),
    "of layers below zero": _options(enc_depth=-1),
    "of vocabularies of 2**40": _options(dim_vocabs=[2**40, 2**40]),
    "of three vocabularies": _options(dim_vocabs=[30, 26, 26]),
    "of vocabularies of texts": _options(dim_vocabs=["a", "b"]),
    "of no heads": _options(transformer_heads=0),
    "of a word of escapes": _options(transformer_ffn_activation=NAME),
}
BESIDE: dict[str, tuple[str, bytes, tuple[int, ...]]] = {
    "a vocabulary of bytes": ("vocab.yml", bytes(range(256)), (BAD,)),
    "a vocabulary of nothing": ("vocab.yml", b"", EITHER),
    "a vocabulary of two ends": ("vocab.yml", b"</s>: 0\n</s>: 3\n", (BAD,)),
    "an end beyond the vocabulary": ("vocab.yml", b"</s>: 999999999\n", (BAD,)),
    "two vocabularies that differ": ("vocab.b.yml", b"a: 0\n</s>: 1\n", (BAD,)),
    "a vocabulary of 20 MB": ("vocab.yml", b"{" + b"a: 1, " * 3_400_000, EITHER),
    "pieces that are none": ("vocab.spm", b"\xff" * 100, EITHER),
    "a decoder that leads out": ("a.decoder.yml", b"vocabs: [../../outside/precious.bin, /etc/passwd]\n", EITHER),
    "a decoder of numbers": ("a.decoder.yml", b"vocabs: [1, null]\n", EITHER),
    "a decoder of 20,000 levels": ("a.decoder.yml", b"vocabs: " + b"[" * 20_000, (BAD,)),
    "a decoder of nothing": ("a.decoder.yml", b"", (BAD,)),
}


def _beside(name: str, content: bytes, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base("marian")
        (folder / name).write_bytes(content)
        return imported(folder, place, codes)

    return make


def _two(place: Place) -> list[Command]:
    folder = place.base("marian")
    (folder / "other.npz").write_bytes((folder / "model.npz").read_bytes())
    both = place.base("opennmt", "both")
    (both / "model_step_20.pt").write_bytes((both / "model_step_10.pt").read_bytes())
    return [*imported(folder, place), *imported(both, place)]


# CTranslate2


def _binary(change: Callable[[bytes], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        commands = []
        for name in ("ctranslate2-own", "ctranslate2-llama-float16"):
            folder = place.base(name, name)
            file = folder / "model.bin"
            file.write_bytes(change(file.read_bytes()))
            commands += imported(folder, place)
        return commands

    return make


def _string(text: bytes) -> bytes:
    return struct.pack("<H", len(text) + 1) + text + b"\0"


def _start(whole: bytes) -> int:
    """Where the number of variables stands."""
    (size,) = struct.unpack("<H", whole[4:6])
    return 10 + int(size)


def _put(whole: bytes, at: int, new: bytes) -> bytes:
    return whole[:at] + new + whole[at + len(new) :]


def _variable(name: bytes, dims: tuple[int, ...], kind: int, size: int, data: bytes) -> Callable[[bytes], bytes]:
    """One variable before all others."""

    def change(whole: bytes) -> bytes:
        at = _start(whole)
        (count,) = struct.unpack("<I", whole[at : at + 4])
        shape = struct.pack("<B", len(dims)) + struct.pack(f"<{len(dims)}I", *dims)
        made = _string(name) + shape + struct.pack("<BI", kind, size) + data
        return whole[:at] + struct.pack("<I", count + 1) + made + whole[at + 4 :]

    return change


BINARIES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda whole: b"",
    "a version": lambda whole: whole[:4],
    "version 0": lambda whole: _put(whole, 0, bytes(4)),
    "version 2**32": lambda whole: _put(whole, 0, b"\xff" * 4),
    "a name of 64 kB": lambda whole: _put(whole, 4, b"\xff\xff"),
    "a name of nothing": lambda whole: _put(whole, 4, b"\0\0"),
    "2**32 variables": lambda whole: _put(whole, _start(whole), b"\xff" * 4),
    "no variables": lambda whole: _put(whole, _start(whole), bytes(4)),
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "cut by a byte": lambda whole: whole[:-1],
    "more at the end": lambda whole: whole + b"more",
    "255 dims": _variable(b"more", (1,) * 255, 0, 4, bytes(4)),
    "dims that overflow": _variable(b"more", (2**31, 2**31, 4), 0, 0, b""),
    "dims of nothing of much": _variable(b"more", (0, 2**31), 0, 0, b""),
    "a type that is none": _variable(b"more", (1,), 200, 4, bytes(4)),
    "a name of escapes": _variable(NAME.encode(), (1,), 0, 4, bytes(4)),
    "a name of bytes": _variable(b"\xff\xfe", (1,), 0, 4, bytes(4)),
    "a name of 1,000 letters": _variable(b"a" * 1_000, (1,), 0, 4, bytes(4)),
    "an attribute of NaN": _variable(b"encoder/sliding_window", (), 0, 4, b"\xff" * 4),
    "an attribute of infinity": _variable(b"decoder/sliding_window", (), 0, 4, struct.pack("<f", float("inf"))),
    "an attribute of 3e38": _variable(b"decoder/layer_0/self_attention/head_dim", (), 0, 4, struct.pack("<f", 3e38)),
    "an attribute that is huge": _variable(b"decoder/sliding_window", (), 3, 4, struct.pack("<i", 2**31 - 1)),
    "layers that are missing": _variable(b"decoder/layer_999999/ffn/linear_0/weight", (1, 1), 0, 4, bytes(4)),
    "a layer of a number of 9,000 digits": _variable(b"decoder/layer_" + b"9" * 900 + b"/a", (1, 1), 0, 4, bytes(4)),
}
VOCABULARIES = {
    "a vocabulary of nothing": b"",
    "a vocabulary of a number": b"5",
    "a vocabulary of numbers": b"[1, 2]",
    "a vocabulary of 200,000 levels": b"[" * 200_000,
    "a vocabulary of one": b'["a"]',
    "a vocabulary of a lone surrogate": b'["\\ud800"]',
    "a vocabulary of one token": b"[" + b'"</s>",' * 100 + b'"</s>"]',
    "a vocabulary of 10 MB": b"[" + b'"a",' * 2_500_000 + b'"a"]',
}


def _vocabulary(text: bytes) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base("ctranslate2-llama-float16")
        (folder / "vocabulary.json").write_bytes(text)
        return imported(folder, place, EITHER if b"</s>" in text else (BAD,))

    return make
