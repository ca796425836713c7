"""Sentences of many scripts, written for these tests, and lines made of them."""

# ruff: noqa: RUF001 - letters of other scripts look like Latin ones

from __future__ import annotations

import random

SENTENCES = """
The weather was fine, so we walked to the old harbour and counted boats.
I don't know why she's late; perhaps they've missed the 7:45 train again.
He said: "It costs $12.50, doesn't it?" and nobody answered (of course).
Die Straße ist für größere Lastwagen gesperrt, weil die Brücke über den Fluß schwankt.
Où est le garçon qui a mangé toutes les crêpes à la fête de l'été dernier ?
El niño pequeño pregunta: ¿cuándo llegará la primavera?
Przyszła wiosna i wszystkie ptaki śpiewają pod naszym oknem.
Các bạn trẻ đang học tiếng Việt ở thành phố lớn.
Bugün hava çok güzel, İstanbul'da ışık her yerde.
Сегодня мы поедем на дачу и будем варить варенье из малины.
Ще не знаємо, чи прийде поїзд вчасно, але їжа вже готова.
Το παιδί διαβάζει ένα βιβλίο για τη θάλασσα και τα νησιά.
الطقس جميل اليوم، فذهبنا إلى السوق لشراء الخبز.
הילדים משחקים בגן, והשמש שוקעת מאחורי ההר.
आज मौसम अच्छा है और हम बाज़ार जा रहे हैं।
ছোট নদীটি গ্রামের পাশ দিয়ে বয়ে যায়।
வானம் நீலமாக இருக்கிறது, மழை இல்லை.
วันนี้อากาศดีมาก เราจะไปตลาดด้วยกัน
今天天气很好,我们去河边散步吧。
昨天他买了三本书,可是还没有看。
今日は天気がいいので、公園でパンを食べました。
コンピュータの電源を入れてください。
오늘은 날씨가 좋아서 공원에 갔습니다.
ბავშვები ეზოში თამაშობენ.
Այսօր եղանակը լավ է։
ዛሬ አየሩ ጥሩ ነው።
The numbers 3, 14, 159 and 2653 add up to 2829; 50% of that is 1414.5.
def add(a, b): return a + b  # code: x == y != z
Emails like anna@example.org and links like https://example.org/a?b=c&d=e
A smile 😀, a family 👨‍👩‍👧, a flag 🇫🇷 and a thumb 👍🏽 go a long way 🎉🎉
""".strip().splitlines()
RARE = [
    "\u00a0",
    "\u3000",
    "\u200b",
    "\u200d",
    "\t",
    "  ",
    "   ",
    "\ufeff",
    "\u00ad",
    "\u2009",
    "\u2028",
    "\u2581",
    "e\u0301",
    "a\u0302\u0301",
    "\u304b\u3099",
    "\uff76\uff9e",
    "\uff21\uff22\uff11",
    "\ufb01",
    "\u00bd",
    "\u2460",
    "\u2122",
    "n\u0303",
    "x\u0304",
    "\u1e9e",
    "\u0130",
    "\u0e33",
    "\u0958",
    "\u1112\u1161\u11ab",
    "\u212b",
    "\u03c2",
    "\U0001d400",
    "\u4e00\u9fff",
    "\U00020000",
    "\u2026",
    "...",
    "--",
    "''",
    "aaaaa",
    "1000000",
    "<b>",
    "[x]",
    "{}",
    "\\n",
    "#hash",
    "@@",
    "##ing",
    "A",
    "Ä",
    "ß",
    " .",
    " ,",
    " 's",
    " n't",
    " !",
]


def lines(count: int, seed: int) -> list[str]:
    """So many lines: whole sentences, mixtures of their words, characters that are rare, odd spaces."""
    rng = random.Random(seed)
    words = [word for sentence in SENTENCES for word in sentence.split()]
    found = list(SENTENCES)
    while len(found) < count:
        parts = rng.choices(words, k=rng.randint(1, 9))
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
            parts.insert(rng.randint(0, len(parts)), rng.choice(RARE))
        if rng.random() < 0.3:
            at = rng.randrange(len(parts))
            parts[at] = "".join(rng.sample(parts[at], len(parts[at])))
        if rng.random() < 0.2:
            at = rng.randrange(len(parts))
            parts[at] = parts[at].upper()
        line = "".join(part + rng.choice([" ", " ", " ", " ", "", "  "]) for part in parts)
        line = rng.choice(["", "", "", " ", "   "]) + (line if rng.random() < 0.2 else line.strip())
        if line.strip():
            found.append(line)
    return found[:count]
