"""The npm package finds the ids of txport in Python by a library's tokenizer, for every kind of tokenizer."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tests import transformers_js
from tests.javascript import run
from tests.recorded import TOKENIZERS
from tests.text.odd import odd_lines
from tests.text.readers import BYTES, COUNT, Side, sides_of
from tests.text.test_agreement import NAMES
from txport.models.names import TOKENIZER
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer


def lines_of(side: Side) -> list[str]:
    """So many that both read alike, those included that the package cuts into bytes by itself."""
    return list(islice((line for line in odd_lines(2 * COUNT, 7) if side.why_not(line, but=BYTES) is None), COUNT))


def test_ids_are_those_of_python(tmp_path: Path) -> None:
    library = transformers_js.tokenizers()
    sides = {
        side: each
        for name in NAMES
        for side, each in sides_of(name, companions_of(TOKENIZERS / name), tmp_path).items()
    }
    readers = {name: FileTokenizer(side.folder / TOKENIZER) for name, side in sides.items()}
    jobs = [
        {"folder": str(side.folder), "lines": lines_of(side), "size": readers[name].size}
        for name, side in sides.items()
    ]
    found = run("encode.mjs", {"library": library, "jobs": jobs})
    for (name, reader), job, ids in zip(readers.items(), jobs, found, strict=True):
        assert len(ids) == COUNT
        for line, theirs in zip(job["lines"], ids, strict=True):
            assert theirs == reader.encode(str(line), "token"), (name, line)
