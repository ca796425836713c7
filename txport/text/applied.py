"""The changes that the tokenizer classes of transformers make to a `tokenizer.json`, by their settings.

Sources: `__init__` of the fast classes of 4.57, and of the classes of 5.24, which build the parts anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from txport.errors import quoted
from txport.models.names import TOKENIZER
from txport.system.documents import DocumentError, read_json
from txport.text.assemble import around
from txport.text.library import LARGEST
from txport.text.settings import Settings

WORDPIECE = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
BYTES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "MvpTokenizer")
ENDED = ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer")  # in version 4
PREFIXED = ("LlamaTokenizer", "T5Tokenizer", "MT5Tokenizer", "XLMRobertaTokenizer", "CamembertTokenizer")
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
GEMMA_ENDS = {"bos_token": "<bos>", "eos_token": "<eos>"}


def applied(file: Path, settings: Settings, kind: str | None, version: int) -> Path | str:
    """Return a `tokenizer.json` as its class of transformers uses it: the file, or the text of a changed one.

    `kind` is the class without "Fast", None if it is unknown, and `version` the major version that saved the folder.
    Raises `CheckpointError` if the settings contradict the file in a way that no version has one meaning for.
    """
    try:
        values = read_json(file, LARGEST)
        changed = dict(_changes(values, settings, kind, version))
    except (DocumentError, LookupError, TypeError, AttributeError):  # the error is raised when it is loaded
        return file
    if all(values.get(name) == part for name, part in changed.items()):
        return file
    return json.dumps(values | changed, ensure_ascii=False) + "\n"


def _changes(
    values: dict[str, Any], settings: Settings, kind: str | None, version: int
) -> Iterator[tuple[str, object]]:
    """Yield parts of the file by their names, changed or not."""
    normalizer, splitter = (values.get(name) or {} for name in ("normalizer", "pre_tokenizer"))
    yield "added_tokens", _added(values, settings)
    if kind in WORDPIECE and normalizer.get("type") == "BertNormalizer":
        strips = None if settings.get("strip_accents") is None else settings.flag("strip_accents", False)
        flags = {"lowercase": settings.flag("do_lower_case", True), "strip_accents": strips}
        flags["handle_chinese_chars"] = settings.flag("tokenize_chinese_chars", True)
        yield "normalizer", normalizer | flags
    if splitter.get("type") == "ByteLevel":
        if version < 5 or kind in BYTES:
            yield "pre_tokenizer", splitter | {"add_prefix_space": settings.flag("add_prefix_space", False)}
    elif kind in PREFIXED and settings.get("add_prefix_space") is not None:
        asked = settings.flag("add_prefix_space", True)
        if asked != any(map(_prefixes, (*_parts(normalizer), *_parts(splitter)))):
            raise settings.wrong(
                f"add_prefix_space {quoted(asked)} contradicts {TOKENIZER}; remove it from one of them"
            )
    if version < 5 and kind in ENDED:
        yield "post_processor", _ends(values, settings, GEMMA_ENDS if kind == "GemmaTokenizer" else ENDS)


def _parts(part: Mapping[str, Any]) -> list[Mapping[str, object]]:
    return part.get("normalizers") or part.get("pretokenizers") or [part]


def _prefixes(part: Mapping[str, object]) -> bool:
    """Return whether a normalizer or pre-tokenizer puts a space before a text."""
    scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
    kind = part.get("type")
    return (
        kind == "Prepend"
        or (kind == "Metaspace" and scheme != "never")
        or (kind == "ByteLevel" and bool(part.get("add_prefix_space")))
    )


def _added(values: Mapping[str, Any], settings: Settings) -> list[dict[str, Any]]:
    """Return the added tokens of a file with the flags of `added_tokens_decoder`, the tokens that it adds, and others.

    The others are tokens of the vocabulary that the settings call special; transformers adds them on loading.
    """
    found = {each["content"]: each for each in values["added_tokens"]}
    if settings.get("added_tokens_decoder") is not None:
        found = _with_decoder(found, values, settings)
    ids = _ids(values)
    new = [token.at(ids[text]) for text, token in settings.special().items() if text in ids and text not in found]
    return sorted((*found.values(), *new), key=lambda each: each["id"]) if new else list(found.values())


def _with_decoder(
    found: Mapping[str, dict[str, Any]], values: Mapping[str, object], settings: Settings
) -> dict[str, dict[str, object]]:
    """Return the added tokens by their texts, as `added_tokens_decoder` changes them."""
    found = dict(found)
    new = {id_: token for id_, token in settings.added().items() if token.text not in found}
    ids = _ids(values) if new else {}
    for token in settings.added().values():
        if token.text in found:
            found[token.text] = token.at(found[token.text]["id"])
    size = 1 + max((*ids.values(), *(each["id"] for each in found.values())), default=-1)
    for id_, token in sorted(new.items()):
        if (expected := ids.get(token.text, size)) != id_:
            what = f"added_tokens_decoder gives {quoted(token.text)} the id {id_}"
            raise settings.wrong(f"{what}, and {TOKENIZER} the id {expected}")
        found[token.text] = token.at(id_)
        size += expected == size
    return dict(sorted(found.items(), key=lambda item: item[1]["id"]))


def _ids(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the vocabulary of a model, without added tokens."""
    words = values["model"]["vocab"]
    return words if isinstance(words, dict) else {text: id_ for id_, (text, _) in enumerate(words)}


def _ends(values: Mapping[str, Any], settings: Settings, defaults: Mapping[str, str]) -> object:
    """Return the post-processor that adds a start token, unless `add_bos_token` is false, and an end token if asked."""
    asked = {"bos_token": settings.flag("add_bos_token", True), "eos_token": settings.flag("add_eos_token", False)}
    sides = [[settings.token(name, defaults[name]) or ""] if adds else [] for name, adds in asked.items()]
    own = values.get("post_processor")
    if _around(own) == sides:
        return own
    ids = {**_ids(values), **{each["content"]: each["id"] for each in values["added_tokens"]}}
    if lacking := [token for side in sides for token in side if token not in ids]:
        raise settings.wrong(f"{TOKENIZER} has no token {quoted(lacking[0])}, which is to be around each text")
    return around(ids, *sides)


def _around(processor: Mapping[str, Any] | None) -> list[list[str]]:
    """Return the tokens before and after a text."""
    parts = (processor or {}).get("processors", [processor or {}])
    single = [each for part in parts if part.get("type") == "TemplateProcessing" for each in part["single"]]
    at = next((place for place, each in enumerate(single) if "Sequence" in each), len(single))
    return [[each["SpecialToken"]["id"] for each in side] for side in (single[:at], single[at + 1 :])]
