"""Compare the tokens of texts with those of the tokenizer that transformers has for a folder."""

# ruff: noqa: RUF001 - letters of other scripts look like Latin ones

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from txport.bundles.comparisons import NOT_COMPARED
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import TextError, brief
from txport.models.audio import Features
from txport.models.names import TOKENIZER
from txport.system.machine import is_out_of_memory
from txport.text.base import Tokenizer
from txport.text.load import tokenizer_of

logger = logging.getLogger(__name__)
LINES = (
    "The weather was fine, so we walked to the old harbour.",
    "I don't know: it costs $12.50, doesn't it? 1234567 (100%)",
    "  two blanks  and three   here ",
    "\ta tab\nand a line end\r\nthen another\n\n",
    "def add(a, b):\n    return a[0] + b  # x != y",
    "HELLO World CamelCase snake_case ABCdef",
    "https://example.org/a?b=c&d=e anna@example.org",
    "Größe, naïve façade, ¿señor?, žluťoučký",
    "e\u0301te\u0301 n\u0303 a\u0308",
    "Мы едем на дачу. Το παιδί διαβάζει.",
    "今日は天気がいい。我们去散步吧。오늘은 날씨가 좋아서",
    "الطقس جميل היום आज मौसम วันนี้",
    "“quotes” ‘single’ — dash… ½ ² ™ № ﬁ Ａ１",
    "😀 👨‍👩‍👧 🇫🇷 👍🏽",
    "a\u00a0b\u200bc\u3000d",
    "word",
)
FIX = (
    "%s: %d of %d lines have other tokens than with transformers' %s, such as %r; to export the tokenizer that"
    " transformers makes of these files, save it first: AutoTokenizer.from_pretrained('%s').save_pretrained('%s')"
)


def compare_texts(checkpoint: Checkpoint, folder: Path) -> dict[str, Any]:
    """Return the record of `LINES`: how many are compared, and those with other ids.

    Of a model that generates, a line differs also if its ids have another text.

    Versions of transformers differ in what they read, so other tokens are a warning. The record is {} for a model that
    reads no text, and has the reason if transformers can't load the tokenizer. Code in the folder is never run.
    """
    if isinstance(checkpoint.facts.reads, Features) or TOKENIZER not in checkpoint.companions:
        return {}
    ours = tokenizer_of(checkpoint.companions, folder, checkpoint.facts)
    try:
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        writes = checkpoint.facts.generates
        differing = [line for line in LINES if _differs(ours, theirs, line, writes=writes)]
    except MemoryError:
        raise
    except Exception as error:  # it has many
        if is_out_of_memory(error):
            raise
        return {NOT_COMPARED: f"{type(error).__name__}: {brief(error)}".replace(str(folder), folder.name)}
    if differing:
        logger.warning(FIX, folder, len(differing), len(LINES), type(theirs).__name__, differing[0], folder, folder)
    return {"name": type(theirs).__name__, "lines": len(LINES), "differing": differing}


def _differs(ours: Tokenizer, theirs: Any, line: str, *, writes: bool) -> bool:
    """Return whether a line has other ids, or if the model `writes` texts, its ids have another text.

    How an unknown token is written is free.
    """
    expected = list(theirs(line).input_ids)
    ids: list[int] = list(theirs("").input_ids)  # of a text without any token of the vocabulary
    with contextlib.suppress(TextError):
        ids = ours.encode(line, "token")
    known = [id_ for id_ in expected if id_ != theirs.unk_token_id]
    return ids != expected or (writes and ours.decode(known) != theirs.decode(known, skip_special_tokens=True))
