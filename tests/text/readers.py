"""A `tokenizer.json` of ours in other readers: what each makes of lines, and which lines they can't take as we do."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from tests import transformers_js
from tests.text.odd import odd_lines
from txport.bundles.hugging_face import tokenizer_config
from txport.models.architectures.transformer import TransformerConfig, facts
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER, TOKENIZER_CONFIG
from txport.system.documents import write_json
from txport.text.file import clean_up

READERS = ("transformers", "tokenizers")  # of JavaScript: transformers.js, @huggingface/tokenizers
COUNT = 1000  # lines
FACTS = facts(TransformerConfig(source_vocab_size=9, target_vocab_size=9, max_length=9))
# Why a line is left out, as docs/tokenizers.md tells.
NOTHING = "nothing is left of it, so txport refuses it"
BYTES = "Unigram models have no bytes there"
BOM = "a byte order mark is dropped there"
ENDS = "blanks at the ends of a text are dropped there"
MAP = "their map of characters differs"
# Of the map that transformers.js has in place of a model's own: what it removes, and what it makes spaces of.
REMOVED = re.compile("[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]")
SPACED = re.compile("[\t\n\x0c\r\xa0\u1680\u2000-\u200f\u2028\u2029\u202f\u205f\u2581\u3000\ufeff\ufffd]")
APART = "\uff5e"  # which it keeps


@dataclass(frozen=True)
class Read:
    """What a reader makes of lines: ids, and the texts of these ids."""

    ids: Sequence[Sequence[int]]
    texts: Sequence[str]


class Side:
    """One tokenizer, in a folder as `AutoTokenizer` needs it, and lines that all readers take alike."""

    def __init__(self, folder: Path, content: str, usage: str | None = None) -> None:
        folder.mkdir(parents=True)
        (folder / TOKENIZER).write_text(content, encoding="utf-8")
        if usage is not None:
            (folder / TEXT).write_text(usage, encoding="utf-8")
        config = tokenizer_config(folder / TOKENIZER, {}, FACTS)
        write_json(folder / TOKENIZER_CONFIG, config)
        self.folder = folder
        self.parts: dict[str, Any] = json.loads(content)
        self.tokenizer = Tokenizer.from_str(content)
        self._cleans = bool(config["clean_up_tokenization_spaces"])

    @cached_property
    def lines(self) -> list[str]:
        """The first so many that no rule leaves out."""
        return list(islice((line for line in odd_lines(5 * COUNT, 7) if self.why_not(line) is None), COUNT))

    def why_not(self, line: str, but: str | None = None) -> str | None:
        """Return the rule by which a line is left out, `but` this one; None if all readers take the line alike."""
        encoding = self.tokenizer.encode(line)
        if len(encoding.ids) == sum(encoding.special_tokens_mask):
            return NOTHING
        if but != BYTES and self._by_bytes and any(token.startswith("<0x") for token in encoding.tokens):
            return BYTES
        if "ByteFallback" in json.dumps(self.parts["decoder"]) and "\ufeff" in line:
            return BOM
        if self.parts["model"].get("end_of_word_suffix") and self._is_trimmed(encoding.ids):
            return ENDS
        return None if self._map is None or self._is_mapped_alike(line) else MAP

    def _is_trimmed(self, ids: Sequence[int]) -> bool:
        text = self.tokenizer.decode(ids)
        return bool(text != text.strip().strip("\ufeff"))

    @property
    def _by_bytes(self) -> bool:
        model = self.parts["model"]
        return bool(model["type"] == "Unigram" and model["byte_fallback"])

    @cached_property
    def _map(self) -> tuple[Any, Any, Any] | None:
        """What is done before a map of characters, the map, and what is done behind it."""
        steps = (self.parts["normalizer"] or {}).get("normalizers", [])
        at = next((at for at, step in enumerate(steps) if step["type"] == "Precompiled"), None)
        if at is None:
            return None
        before, map_, after = map(self._normalizer, (steps[:at], steps[at : at + 1], steps[at + 1 :]))
        return before, map_, after

    def _normalizer(self, steps: list[Any]) -> Any:
        parts = {**self.parts, "normalizer": {"type": "Sequence", "normalizers": steps}}
        return Tokenizer.from_str(json.dumps(parts)).normalizer if steps else normalizers.Sequence([])

    def _is_mapped_alike(self, line: str) -> bool:
        assert self._map is not None
        before, map_, after = self._map
        text = before.normalize_str(line)
        return bool(after.normalize_str(map_.normalize_str(text)) == after.normalize_str(their_map(text)))

    def in_python(self) -> Read:
        ids = [self.tokenizer.encode(line).ids for line in self.lines]
        texts = [self.tokenizer.decode(each) for each in ids]
        return Read(ids, [clean_up(text) for text in texts] if self._cleans else texts)


def their_map(text: str) -> str:
    """What transformers.js makes of a text where a `tokenizer.json` has a map of characters."""
    plain = SPACED.sub(" ", REMOVED.sub("", text))
    return APART.join(unicodedata.normalize("NFKC", part) for part in plain.split(APART))


def sides_of(name: str, files: Mapping[str, Path | str], folder: Path) -> dict[str, Side]:
    """The tokenizers among the files of a checkpoint, by name."""
    usage = str(files[TEXT]) if TEXT in files else None
    names = {name: TOKENIZER, f"{name}, targets": TARGET_TOKENIZER}
    return {each: Side(folder / each, str(files[file]), usage) for each, file in names.items() if file in files}


def in_javascript(sides: Mapping[str, Side]) -> dict[str, dict[str, Read]]:
    """What both readers of JavaScript make of the lines of each side."""
    jobs = [{"folder": str(side.folder), "lines": side.lines} for side in sides.values()]
    found = transformers_js.read(jobs)
    return {name: {reader: Read(**each[reader]) for reader in READERS} for name, each in zip(sides, found, strict=True)}


def differences(ours: Read, theirs: Read, lines: Sequence[str]) -> list[Any]:
    """Lines whose ids, or the text of whose ids, differ."""
    rows = zip(lines, ours.ids, theirs.ids, ours.texts, theirs.texts, strict=True)
    return [row for row in rows if row[1] != row[2] or row[3] != row[4]]
