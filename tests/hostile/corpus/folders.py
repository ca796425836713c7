"""Folders that transformers and sentence-transformers write, and weights in several files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.case import BAD, FAILED, GOOD, Case, Command, Place, command, edit_values, read_values
from tests.hostile.corpus.manifests import BYTES as NO_JSON
from tests.hostile.corpus.trainers import imported
from tests.hostile.corpus.values import DEEP_LIST, HUGE_NUMBER, NAME, spell
from txport.models.names import CONFIG, GENERATION, INDEX, MODULES, PREPROCESSOR, SENTENCES

EITHER = (GOOD, BAD)
POOLING = f"1_Pooling/{CONFIG}"
FILES = {  # of a folder, those that say something of a model
    "whisper": (CONFIG, GENERATION, PREPROCESSOR),
    "sentences-mean": (CONFIG, MODULES, SENTENCES, POOLING),
    "gemma3-images": (CONFIG,),
}


def cases() -> Iterator[Case]:
    """Every folder."""
    for base, files in FILES.items():
        for file in files:
            for name in ("empty", "a list", "a list of 200,000 levels", "zeros", "UTF-16", "an invalid byte"):
                yield Case(f"folders/{base} {file} {name}", _bytes(base, file, NO_JSON[name]))
    for name, (base, file, key, value, codes) in VALUES.items():
        yield Case(f"folders/{base} {name}", _value(base, file, key, value, codes))
    yield from (Case(f"folders/modules {name}", _modules(modules)) for name, modules in MODULE_LISTS.items())
    yield from (Case(f"folders/index {name}", _index(change)) for name, change in INDEXES.items())
    yield from (Case(f"folders/{name}", _node(*what)) for name, what in NODES.items())


def _bytes(base: str, name: str, change: Callable[[bytes], bytes]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base(base)
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(after := change(before))
        # A table of tensors says nothing of pooling: the model does, where it is made.
        commands = imported(folder, place)[base == "sentences-mean" :]
        return commands if after != before else []

    return make


def _value(base: str, file: str, key: str, value: Any, codes: tuple[int, ...]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base(base)
        edit_values(folder / file, lambda values: values.update({key: value}))
        text = spell((folder / file).read_text(encoding="utf-8", errors="surrogatepass"))
        (folder / file).write_text(text, encoding="utf-8", errors="surrogatepass")
        return imported(folder, place, codes)[base == "sentences-mean" :]

    return make


VALUES: dict[str, tuple[str, str, str, Any, tuple[int, ...]]] = {
    "a window of 2**40 seconds": ("whisper", PREPROCESSOR, "chunk_length", 2**40, (BAD,)),
    "a window of texts": ("whisper", PREPROCESSOR, "chunk_length", "a" * 1_000, (BAD,)),
    "a window of lists": ("whisper", PREPROCESSOR, "chunk_length", [0] * 100_000, (BAD,)),
    "no hop": ("whisper", PREPROCESSOR, "hop_length", 0, (BAD,)),
    "a rate of 5,000 digits": ("whisper", PREPROCESSOR, "sampling_rate", HUGE_NUMBER, (BAD,)),
    "a hop below zero": ("whisper", PREPROCESSOR, "hop_length", -160, (BAD,)),
    "bins of another model": ("whisper", PREPROCESSOR, "feature_size", 11, (BAD,)),
    "languages of lists": ("whisper", GENERATION, "lang_to_id", {"<|de|>": [1]}, (BAD,)),
    "languages of escapes": ("whisper", GENERATION, "lang_to_id", {NAME: 27}, EITHER),
    "languages of one token": ("whisper", GENERATION, "lang_to_id", {"<|de|>": 27, "<|en|>": 27}, (BAD,)),
    "languages beyond the vocabulary": ("whisper", GENERATION, "lang_to_id", {"<|de|>": 10**9}, (BAD,)),
    "100,000 languages": ("whisper", GENERATION, "lang_to_id", {f"<|{at}|>": at for at in range(30_000)}, (BAD,)),
    "tasks of texts": ("whisper", GENERATION, "task_to_id", {"transcribe": "30"}, (BAD,)),
    "tasks beyond the vocabulary": ("whisper", GENERATION, "task_to_id", {"transcribe": 30, "translate": 86}, (BAD,)),
    "forced tokens of a number": ("whisper", GENERATION, "forced_decoder_ids", 5, (BAD,)),
    "forced tokens of 200,000 levels": ("whisper", GENERATION, "forced_decoder_ids", DEEP_LIST, (BAD,)),
    "forced tokens beyond the vocabulary": ("whisper", GENERATION, "forced_decoder_ids", [[1, 10**9]], (BAD,)),
    "times that begin at the end": ("whisper", GENERATION, "no_timestamps_token_id", 85, (BAD,)),
    "times that begin below zero": ("whisper", GENERATION, "no_timestamps_token_id", -1, (BAD,)),
    "a first time that is late": ("whisper", GENERATION, "max_initial_timestamp_index", 10**12, EITHER),
    "mel bins of 2**40": ("whisper", CONFIG, "num_mel_bins", 2**40, (BAD,)),
    "places of 2**40": ("whisper", CONFIG, "max_source_positions", 2**40, (FAILED,)),
    "no places": ("whisper", CONFIG, "max_source_positions", 0, (BAD,)),
    "suppressed tokens of all": ("whisper", GENERATION, "suppress_tokens", list(range(86)), EITHER),
    "the longest sentence of nothing": ("sentences-mean", SENTENCES, "max_seq_length", 0, (BAD,)),
    "the longest sentence of 2**62": ("sentences-mean", SENTENCES, "max_seq_length", 2**62, EITHER),
    "the longest sentence of a text": ("sentences-mean", SENTENCES, "max_seq_length", "9", (BAD,)),
    "a pooling of escapes": ("sentences-mean", POOLING, "pooling_mode", NAME, (BAD,)),
    "a pooling of lists": ("sentences-mean", POOLING, "pooling_mode", ["mean"], (BAD,)),
    "a pooling of all": ("sentences-mean", POOLING, "pooling_mode_cls_token", True, (BAD,)),
    "a pooling of another width": ("sentences-mean", POOLING, "word_embedding_dimension", 2**40, (BAD,)),
    "an attention window below zero": ("gemma2", CONFIG, "sliding_window", -1, (BAD,)),
    "an attention window of a text": ("gemma2", CONFIG, "sliding_window", "4", (BAD,)),
    "a cap of NaN": ("gemma2", CONFIG, "attn_logit_softcapping", float("nan"), (BAD,)),
    "a cap of zero": ("gemma2", CONFIG, "attn_logit_softcapping", 0, (BAD,)),
    "a cap of 5,000 digits": ("gemma2", CONFIG, "final_logit_softcapping", HUGE_NUMBER, (BAD,)),
    "kinds of layers of escapes": ("gemma2", CONFIG, "layer_types", [NAME, NAME], (BAD,)),
    "kinds of one layer": ("gemma2", CONFIG, "layer_types", ["full_attention"], (BAD,)),
    "scaling of zero": ("llama-yarn", CONFIG, "rope_scaling", {"rope_type": "yarn", "factor": 0}, (BAD,)),
    "scaling of a list": ("llama-yarn", CONFIG, "rope_scaling", [], (BAD,)),
    "scaling of escapes": ("llama-yarn", CONFIG, "rope_scaling", {"rope_type": NAME, "factor": 2}, (BAD,)),
    "a base of zero": ("llama-3", CONFIG, "rope_theta", 0, (BAD,)),
    "a base of 1e308": ("llama-3", CONFIG, "rope_theta", 1e308, EITHER),
    "factors of no number": ("phi3-longrope", CONFIG, "rope_scaling", {"type": "longrope", "short_factor": 5}, (BAD,)),
    "languages beyond": ("m2m_100-language", GENERATION, "forced_bos_token_id", 10**9, EITHER),
    "a head of escapes": ("bert-labels", CONFIG, "architectures", [NAME], (BAD,)),
    "labels of lists": ("bert-labels", CONFIG, "id2label", {"0": ["a"]}, (BAD,)),
    "labels of 200,000 levels": ("bert-labels", CONFIG, "id2label", DEEP_LIST, (BAD,)),
    "a million labels": ("bert-labels", CONFIG, "id2label", {str(at): "a" for at in range(60_000)}, (BAD,)),
    "no model_type": ("gpt2", CONFIG, "model_type", None, (BAD,)),
    "a model_type of a path": ("gpt2", CONFIG, "model_type", "../../outside", (BAD,)),
    "heads of 2**63": ("gpt2", CONFIG, "n_head", 2**63, (BAD,)),
}


def _module(kind: str, path: object) -> dict[str, object]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


MODULE_LISTS: dict[str, Any] = {
    "of nothing": [],
    "of numbers": [1, 2],
    "as an object": {"0": _module("Transformer", "")},
    "of a path that leads out": [_module("Transformer", ""), _module("Pooling", "../../outside/1_Pooling")],
    "of an absolute path": [_module("Transformer", ""), _module("Pooling", "/etc/1_Pooling")],
    "of a model elsewhere": [_module("Transformer", "../outside"), _module("Pooling", "1_Pooling")],
    "of a path above": [_module("Transformer", ""), _module("Pooling", "..")],
    "of a path of nothing": [_module("Transformer", ""), _module("Pooling", None)],
    "of a path of escapes": [_module("Transformer", ""), _module("Pooling", f"{NAME}_Pooling")],
    "of a path with a NUL": [_module("Transformer", ""), _module("Pooling", "a\0_Pooling")],
    "of a path that is missing": [_module("Transformer", ""), _module("Pooling", "9_Pooling")],
    "of code": [_module("Transformer", ""), {"path": "1_Pooling", "type": "custom.Pooling"}],
    "of kinds of escapes": [_module("Transformer", ""), _module(NAME, "1_Pooling")],
    "the other way": [_module("Pooling", "1_Pooling"), _module("Transformer", "")],
    "of Normalize alone": [_module("Normalize", "2_Normalize")],
    "of a dense layer": [_module("Transformer", ""), _module("Pooling", "1_Pooling"), _module("Dense", "2_Dense")],
}


def _modules(modules: Any) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base("sentences-mean")
        (folder / MODULES).write_text(json.dumps(modules), encoding="utf-8")
        # What is wrong with pooling is told where a model is made, not where its tensors are shown.
        return [command("import", folder, place.out / "made", codes=(BAD,)),
                command("export", folder, place.out / "made", codes=(BAD,))]  # fmt: skip

    return make


def _index(change: Callable[[Any], Any]) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base("shards")
        values = change(read_values(folder / INDEX))
        (folder / INDEX).write_text(spell(json.dumps(values)), encoding="utf-8", errors="surrogatepass")
        return imported(folder, place)

    return make


def _all(file: Any) -> Callable[[Any], Any]:
    """All tensors in one file, whatever that is."""
    return lambda values: {**values, "weight_map": dict.fromkeys(values["weight_map"], file)}


def _more(file: Any) -> Callable[[Any], Any]:
    return lambda values: {**values, "weight_map": {**values["weight_map"], "more": file}}


INDEXES: dict[str, Callable[[Any], Any]] = {
    "of nothing": lambda values: {},
    "of no files": lambda values: {"weight_map": {}},
    "of a list": lambda values: {"weight_map": ["model.safetensors"]},
    "of numbers": _all(5),
    "of lists": _all(["a"]),
    "of null": _more(None),
    "of 200,000 levels": lambda values: {"weight_map": DEEP_LIST},
    "of a file that leads out": _more("../../outside/precious.bin"),
    "of an absolute file": _more("/etc/passwd"),
    "of a file with backslashes": _more("..\\..\\outside\\precious.bin"),
    "of a folder": _more("."),
    "of the folder above": _more(".."),
    "of a file of escapes": _more(NAME),
    "of a file with a NUL": _more("a\0b"),
    "of a lone surrogate": _more("\ud800"),
    "of a name of 5,000 characters": _more("a" * 5_000),
    "of a config as weights": _more(CONFIG),
    "of 100,000 files": lambda values: {"weight_map": {str(at): f"{at}.safetensors" for at in range(100_000)}},
    "of one file alone": _all("model-00001-of-00002.safetensors"),
}


def _away(path: Path, to: object) -> None:
    path.unlink()
    path.symlink_to(str(to))


SHARD = "model-00001-of-00002.safetensors"
NODES: dict[str, tuple[str, Callable[[Path, Place], object], tuple[int, ...]]] = {
    "a shard by a link to nothing": ("shards", lambda folder, place: _away(folder / SHARD, "nowhere"), (BAD,)),
    "a shard by a link to itself": ("shards", lambda folder, place: _away(folder / SHARD, SHARD), (BAD,)),
    "a shard of an endless device": ("shards", lambda folder, place: _away(folder / SHARD, "/dev/zero"), (BAD,)),
    "a shard of another file": (
        "shards",
        lambda folder, place: _away(folder / SHARD, place.outside / "precious.bin"),
        (BAD,),
    ),
    "a shard twice": (
        "shards",
        lambda folder, place: _away(folder / SHARD, "model-00002-of-00002.safetensors"),
        (BAD,),
    ),
    "a FIFO of modules": (
        "sentences-mean",
        lambda folder, place: ((folder / MODULES).unlink(), os.mkfifo(folder / MODULES)),
        EITHER,
    ),
    "a link of modules to itself": ("sentences-mean", lambda folder, place: _away(folder / MODULES, MODULES), EITHER),
    "a pooling of an endless device": (
        "sentences-mean",
        lambda folder, place: _away(folder / POOLING, "/dev/zero"),
        EITHER,
    ),
    "a FIFO of settings": ("tokenizer-bert", lambda folder, place: _fifo(folder / "tokenizer_config.json"), EITHER),
    "a FIFO of pieces": ("tokenizer-t5-bytes", lambda folder, place: _fifo(folder / "spiece.model"), EITHER),
    "an endless vocabulary": ("tokenizer-bert", lambda folder, place: _away(folder / "vocab.txt", "/dev/zero"), EITHER),
    "endless merges": ("tokenizer-gpt2", lambda folder, place: _away(folder / "merges.txt", "/dev/zero"), (BAD,)),
    "an endless binary": ("ctranslate2-own", lambda folder, place: _away(folder / "model.bin", "/dev/zero"), (BAD,)),
    "an endless archive": ("marian", lambda folder, place: _away(folder / "model.npz", "/dev/zero"), (BAD,)),
    "an endless pickle": ("opennmt", lambda folder, place: _away(folder / "model_step_10.pt", "/dev/zero"), (BAD,)),
    "a FIFO of a binary": ("ctranslate2-own", lambda folder, place: _fifo(folder / "model.bin"), (BAD,)),
    "a FIFO of an archive": ("marian", lambda folder, place: _fifo(folder / "model.npz"), (BAD,)),
    "an archive that is a folder": (
        "marian",
        lambda folder, place: ((folder / "model.npz").unlink(), (folder / "model.npz").mkdir()),
        (BAD,),
    ),
    "endless options": ("marian", lambda folder, place: (folder / "a.decoder.yml").symlink_to("/dev/zero"), (BAD,)),
}


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _node(
    base: str, change: Callable[[Path, Place], object], codes: tuple[int, ...]
) -> Callable[[Place], list[Command]]:
    def make(place: Place) -> list[Command]:
        folder = place.base(base)
        change(folder, place)
        return imported(folder, place, codes)[base.startswith("tokenizer") :]  # of which a table says nothing

    return make
