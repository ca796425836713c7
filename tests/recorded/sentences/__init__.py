"""Folders that sentence-transformers 6.2 wrote, with the vectors that it makes of `TEXTS`."""

from __future__ import annotations

WORDS = [f"w{number}" for number in range(90)]
LENGTHS = [1, 2, 3, 5, 9, 17, 30, 61]  # words: with the special tokens, up to the longest text
TEXTS = [
    " ".join(WORDS[(7 * number + 13 * place + place * place) % len(WORDS)] for place in range(LENGTHS[number % 8]))
    for number in range(24)
]
CUT = 6
PRECISIONS = ("int8", "uint8", "binary", "ubinary")
