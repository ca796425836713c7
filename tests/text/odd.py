"""Lines that readers of a tokenizer may take in different ways: many scripts, blanks everywhere, marks, emoji."""

# ruff: noqa: RUF001 - letters of other scripts look like Latin ones

from __future__ import annotations

import random
from functools import cache

from tests.text.corpus import lines

BLANKS = [" ", " ", " ", "", "  ", "   ", "\n", " \n ", "\r\n", "\n\n", "\t"]
AT_ENDS = ["", "", "", " ", "  ", "\n", "\t", "\u00a0", "\u3000"]
PARTS = [
    "👩\u200d💻",
    "👨\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "❤️",
    "1️⃣",
    "👍🏽",
    "🇫🇷",
    "क्\u200dष",
    "ക്\u200d",
    "می\u200cخواهم",
    "ΟΔΟΣ",
    "ΣΑΣ",
    "Σ",
    "İstanbul",
    "ŉ",
    "ẞ",
    "ﬀ",
    "①",
    "㍿",
    "ｶﾞ",
    "ﾊﾟ",
    "ﾏﾙ",
    "が",
    "ｆｕｌｌ",
    "～",
    "𠀋",
    "𠮷野家",
    "𝔘",
    "…",
    "“so”",
    "–",
    "⁰",
    "½",
    "ﷺ",
    "กำ",
    "ค่ำ",
    "தமிழ்",
    "བོད་",
    "ខ្មែរ",
    "မြန်မာ",
    "ᏣᎳᎩ",
    "ⴰⵎⴰⵣⵉⵖ",
    "Ångström",
    "ǅ",
    "ς",
    "don't",
    "I'll",
    "we've",
    "3.14",
    "1,000",
    "a/b",
    "<a>",
    "[b]",
    "{c}",
    "a_b",
    "__",
    "--",
    "''",
    '""',
    "...",
    "##",
    "@@",
    "@-@",
    "\\n",
    "%s",
    "&amp;",
]
PARTS += ["e\u0301", "a\u0323\u0301", "\u0301", "\u304b\u3099", "\u30cf\u309a", "\u1100\u1161\u11a8", "\u1112\u1161"]
PARTS += ["\u200e", "\u200f", "\u061c", "\u200b", "\u200c", "\u200d", "\u2028", "\u2060", "\ufeff", "\u00ad", "\ufffd"]
PARTS += ["\u2581", "\u2581\u2581a", "\x07", "\x7f", "\u0085", "\u180e", "\U000e0001", "\ue000"]
BLOCKS = [
    *((0x21, 0x7E), (0xA1, 0x24F), (0x300, 0x36F), (0x370, 0x373), (0x386, 0x3FF), (0x400, 0x52F), (0x531, 0x556)),
    *((0x5D0, 0x5EA), (0x620, 0x64A), (0x904, 0x939), (0x985, 0x9A8), (0xB85, 0xB8A), (0xE01, 0xE30)),
    *((0x10D0, 0x10F0), (0x1200, 0x1248), (0x1E00, 0x1EFF), (0x2010, 0x2027), (0x2190, 0x21FF), (0x2460, 0x24FF)),
    *((0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFF01, 0xFFBE), (0x1D400, 0x1D454)),
    *((0x1F300, 0x1F64F), (0x20000, 0x2A6D6), (0x2F800, 0x2FA1D)),
]


@cache
def odd_lines(count: int, seed: int) -> tuple[str, ...]:
    """So many lines, mixed: half as `corpus` makes them, half words beside odd parts and letters of any block."""
    rng = random.Random(seed)
    found = lines(count // 2, seed)
    words = " ".join(found).split()
    while len(found) < count:
        parts = [_part(rng, words) for _ in range(rng.randint(1, 7))]
        line = "".join(part + rng.choice(BLANKS) for part in parts)
        line = rng.choice(AT_ENDS) + (line if rng.random() < 0.4 else line.strip()) + rng.choice(AT_ENDS)
        if line.strip():
            found.append(line)
    rng.shuffle(found)  # so that the first lines are of both kinds
    return tuple(found)


def _part(rng: random.Random, words: list[str]) -> str:
    kind = rng.random()
    if kind < 0.75:
        return rng.choice(words if kind < 0.4 else PARTS)
    first, last = rng.choice(BLOCKS)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 4)))
