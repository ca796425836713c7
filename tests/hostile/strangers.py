"""Drawn damage of what others write: folders, tokenizers, other trainers' models, rules, audio, chats."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from tests.hostile import archives, bases
from tests.hostile.case import (
    BAD,
    FAILED,
    GOOD,
    Command,
    Place,
    command,
    fix_hashes,
    read_values,
)
from tests.hostile.changes import mutate_bytes, mutate_values, write_document
from tests.hostile.corpus import chats
from tests.hostile.corpus.checkpoints import join_weights, split_weights
from txport.models.names import INDEX, PICKLE, RULES, SPELLINGS, TEXT, WEIGHTS

Make = Callable[[Place, random.Random], list[Command]]
EITHER = (GOOD, BAD)
SAID = ("config.json", "generation_config.json", "preprocessor_config.json", "modules.json")
MORE = ("sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json")
WHOLE = 300_000  # bytes, beyond which a file is changed near its ends


def _altered(file: Path, rng: random.Random) -> None:
    """A document with a value changed, or bytes of any file."""
    if file.suffix == ".json" and rng.random() < 0.85:
        write_document(file, mutate_values(json.loads(file.read_text(encoding="utf-8")), rng))
    else:
        file.write_bytes(mutate_bytes(file.read_bytes(), rng))


def _imported(folder: Path, place: Place, rng: random.Random) -> list[Command]:
    """Its table, or the model as one of ours."""
    drawn = rng.random()
    if drawn < 0.6:
        return [command("import", folder, place.out / "made", codes=EITHER)]
    return [command("import", folder, *(("--json",) if drawn < 0.8 else ()), codes=EITHER)]


def _family(place: Place, rng: random.Random) -> list[Command]:
    """Now and then it is exported: its sequences are short."""
    folder = place.base(rng.choice(bases.FAMILIES))
    _altered(rng.choice([folder / name for name in (*SAID, *MORE) if (folder / name).is_file()]), rng)
    if rng.random() < 0.03:
        return [command("export", folder, place.out / "made", codes=(GOOD, FAILED, BAD))]
    return _imported(folder, place, rng)


def _tokenizer(place: Place, rng: random.Random) -> list[Command]:
    folder = place.base(f"tokenizer-{rng.choice(list(bases.TOKENIZERS))}")
    _altered(rng.choice([folder / name for name in SPELLINGS if (folder / name).is_file()]), rng)
    return [command("import", folder, place.out / "made", codes=EITHER)]


def _archive(place: Place, rng: random.Random) -> list[Command]:
    """Marian's: the zip, or one member in it."""
    folder = place.base("marian")
    file = folder / "model.npz"
    match rng.randrange(4):
        case 0:
            file.write_bytes(mutate_bytes(file.read_bytes(), rng))
        case 1:
            _altered(folder / "vocab.yml", rng)
        case _:
            members = archives.read_members(file)
            name = rng.choice(["special:model.yml.npy", *members])
            whole = members[name]
            if name.startswith("special:"):  # its header counts the bytes of the options
                text = mutate_bytes(whole[128:], rng)
                members[name] = archives.npy(f"({len(text)},)", "|i1", text)
            else:
                members[name] = mutate_bytes(whole[:128], rng) + whole[128:]
            archives.write_members(file, members)
    return _imported(folder, place, rng)


def _binary(place: Place, rng: random.Random) -> list[Command]:
    folder = place.base(f"ctranslate2-{rng.choice(bases.CTRANSLATE2)}")
    file = rng.choice([folder / "model.bin"] * 3 + sorted(folder.glob("*.json")))
    if file.suffix == ".bin":
        whole = file.read_bytes()
        begin = rng.choice((0, 0, rng.randrange(len(whole))))
        file.write_bytes(whole[:begin] + mutate_bytes(whole[begin : begin + 400], rng) + whole[begin + 400 :])
    else:
        _altered(file, rng)
    return _imported(folder, place, rng)


def _pickle(place: Place, rng: random.Random) -> list[Command]:
    """Bytes, or options that are others."""
    import torch

    base, name = rng.choice((("fairseq", "checkpoint_best.pt"), ("opennmt", "model_step_10.pt"), ("pickle", PICKLE)))
    folder = place.base(base)
    file = folder / name
    if base == "pickle" or rng.random() < 0.4:
        whole = file.read_bytes()
        size = rng.choice((1_000, 8_000, len(whole)))
        file.write_bytes(mutate_bytes(whole[:size], rng) + whole[size:])
    else:
        values = torch.load(file, weights_only=False)
        key = "args" if "args" in values else rng.choice(("opt", "opt", "vocab"))
        given = values[key]
        changed = mutate_values(vars(given) if isinstance(given, Namespace) else given, rng)
        is_named = isinstance(given, Namespace) and isinstance(changed, dict)
        values[key] = Namespace(**changed) if is_named else changed
        torch.save(values, file)
    return _imported(folder, place, rng)


def _shards(place: Place, rng: random.Random) -> list[Command]:
    folder = place.base("shards")
    if rng.random() < 0.5:
        _altered(folder / INDEX, rng)
    else:
        file = rng.choice(sorted(folder.glob("model-*.safetensors")))
        header, data = split_weights(file.read_bytes())
        file.write_bytes(join_weights(json.dumps(mutate_values(header, rng)), data))
    return _imported(folder, place, rng)


def _rules(place: Place, rng: random.Random) -> list[Command]:
    folder = place.base("rules")
    _altered(folder / RULES, rng)
    return _imported(folder, place, rng)


def _draft(place: Place, rng: random.Random) -> list[Command]:
    """Of weights of other names and shapes; beside them, a draft may be written."""
    import shutil

    folder = Path(shutil.copytree(place.sound.base("loose"), place.out / "loose"))
    file = folder / rng.choice((WEIGHTS, WEIGHTS, "hparams.json"))
    if file.suffix == ".json":
        _altered(file, rng)
    else:
        header, data = split_weights(file.read_bytes())
        for _ in range(rng.choice((1, 5, 30))):
            name = rng.choice(list(header))
            if rng.random() < 0.5:
                header[name + rng.choice((".0", ".7.a", "(", "'", "\n", "\u202e", ".weight"))] = header.pop(name)
            elif isinstance(header[name], dict) and "shape" in header[name]:
                header[name]["shape"] = rng.choice((header[name]["shape"][::-1], [1, *header[name]["shape"]]))
        file.write_bytes(join_weights(json.dumps(header), data))
    return [
        command("import", folder, "--draft-map", folder / RULES, codes=EITHER),
        command("import", folder, codes=(BAD,)),
    ]


def _audio(place: Place, rng: random.Random) -> list[Command]:
    source = place.sound.base("audio") / rng.choice(bases.AUDIO)
    whole = source.read_bytes()
    size = rng.choice((60, 60, 400, len(whole)))
    file = place.inputs / f"talk.{source.suffix}"
    file.write_bytes(mutate_bytes(whole[:size], rng) + whole[size:])
    how = [(), ("--json",), ("--timestamps",), ("--language", "de", "--task", "translate"), ("--fallback",)]
    run = ("run", place.sound.bundle("speech"), file, "--threads", 1)
    return [command(*run, *rng.choice(how), codes=EITHER)]


def _usage(place: Place, rng: random.Random) -> list[Command]:
    kind = rng.choice(("chat", "languages"))
    bundle = place.bundle(kind, kind)
    _altered(bundle / TEXT, rng)
    fix_hashes(bundle)
    return [rng.choice(chats.readers(kind, place, EITHER))]


def _template(place: Place, rng: random.Random) -> list[Command]:
    """Bytes of a template."""
    bundle = place.bundle("chat", "chat")
    values = read_values(bundle / TEXT)
    changed = mutate_bytes(values["chat"]["template"].encode(), rng)
    values["chat"]["template"] = changed.decode("utf-8", "replace")
    write_document(bundle / TEXT, values)
    fix_hashes(bundle)
    return chats.readers("chat", place, EITHER)[:2]


def _messages(place: Place, rng: random.Random) -> list[Command]:
    said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
    file = place.inputs / "said"
    write_document(file, mutate_values(said[: rng.choice((1, 2))], rng))
    run = ("run", place.sound.bundle("chat"), "--chat", "--threads", 1, "--max-new-tokens", 2, "--input", file)
    return [command(*run, codes=EITHER)]


# How it is made, and its share of a hundred
MUTATIONS: dict[str, tuple[Make, int]] = {
    "family": (_family, 7),
    "tokenizer files": (_tokenizer, 4),
    "archive": (_archive, 3),
    "binary": (_binary, 4),
    "pickle": (_pickle, 3),
    "shards": (_shards, 1),
    "rules": (_rules, 2),
    "draft": (_draft, 1),
    "audio": (_audio, 4),
    "text.json": (_usage, 3),
    "template": (_template, 1),
    "messages": (_messages, 1),
}
