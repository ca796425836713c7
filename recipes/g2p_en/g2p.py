"""Spelling to pronunciation: the dictionary's format, its vocabulary, and how the literature scores it.

The data are the CMU Pronouncing Dictionary in the split of the PRONASYL 2007 challenge: one entry a line,
`WORD<TAB>P H O N E S`, 39 phones without stress, and a word on several lines if it has several
pronunciations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
LETTERS = tuple("'abcdefghijklmnopqrstuvwxyz")
PHONE_NAMES = """
AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH
"""
PHONES = tuple(PHONE_NAMES.split())
VOCABULARY = (*SPECIAL, *LETTERS, *PHONES)

Dictionary = dict[str, list[tuple[str, ...]]]


class DataError(ValueError):
    """A dictionary file that breaks the format."""


def read_dictionary(path: Path) -> Dictionary:
    """Each word, in lower case, with its pronunciations, in the file's order."""
    entries: Dictionary = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        word, tab, phones = line.partition("\t")
        if not tab or not word or not phones.split():
            raise DataError(f"{path}:{number}: expected WORD<TAB>P H O N E S, got {line!r}")
        entries.setdefault(word.lower(), []).append(tuple(phones.split()))
    return entries


@dataclass(frozen=True)
class Score:
    """Error rates over a dictionary, in percent."""

    words: int
    wer: float
    per: float


def score(dictionary: Mapping[str, Sequence[Sequence[str]]], predicted: Mapping[str, Sequence[str]]) -> Score:
    """Word and phone error rates: a word is right if it matches any reference; phones count against the closest."""
    wrong = errors = phones = 0
    for word, references in dictionary.items():
        closest = min(references, key=lambda reference: edit_distance(reference, predicted[word]) / len(reference))
        distance = edit_distance(closest, predicted[word])
        wrong += distance > 0
        errors += distance
        phones += len(closest)
    return Score(len(dictionary), 100 * wrong / len(dictionary), 100 * errors / phones)


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Levenshtein's distance: insertions, deletions and substitutions, one each."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        above = row[0]
        row[0] = i
        for j, b in enumerate(second, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return row[-1]


def split_off(dictionary: Dictionary, words: Iterable[str]) -> tuple[Dictionary, Dictionary]:
    """The entries of all other words, and the entries of `words`."""
    chosen = set(words)
    rest = {word: entries for word, entries in dictionary.items() if word not in chosen}
    return rest, {word: entries for word, entries in dictionary.items() if word in chosen}
