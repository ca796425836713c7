"""Every kind of `tokenizer.json` that we write is read alike in Python, transformers.js and @huggingface/tokenizers.

tests/hugging_face/test_readers.py has the same for the whole maps of characters that SentencePiece comes with.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.recorded import TOKENIZERS
from tests.text.corpus import lines as plain_lines
from tests.text.odd import odd_lines
from tests.text.readers import BYTES, COUNT, MAP, READERS, Read, Side, differences, in_javascript, sides_of
from tests.text.test_agreement import NAMES
from tests.text.trainers.test_text import FILES
from tests.text.trainers.test_text import folders as folders
from tests.tiny import VOCABULARY
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.names import CONFIG, TOKENIZER
from txport.text.convert import companions_of

COPIED = "bert of transformers"
KINDS = (*NAMES, *(f"trainer {name}" for name in FILES), "letters", COPIED)
FEW, MANY = 20, 150  # of a thousand
ODD = 100  # a Unigram model with bytes can be given few of them


@pytest.fixture(scope="module")
def sides(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Side]:
    """Sources and targets of every kind, by its name; of targets, also their own."""
    folder = tmp_path_factory.mktemp("sides")
    files = {name: companions_of(TOKENIZERS / name) for name in NAMES}
    files |= {f"trainer {name}": load_checkpoint(str(folders / name)).companions for name in FILES}
    files[COPIED] = companions_of(bert_of_transformers(tmp_path_factory.mktemp("copied")))
    files["letters"] = {TOKENIZER: spelling_tokenizer(VOCABULARY)}
    return {side: each for name in KINDS for side, each in sides_of(name, files[name], folder).items()}


def bert_of_transformers(folder: Path) -> Path:
    """A folder with a `tokenizer.json` whose parts transformers writes, in place of ours."""
    values = json.loads(str(companions_of(TOKENIZERS / "bert")[TOKENIZER]))
    values["normalizer"] = values["normalizer"]["normalizers"][-1]
    values["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    (folder / TOKENIZER).write_text(json.dumps(values), encoding="utf-8")
    (folder / CONFIG).write_text('{"model_type": "bert"}', encoding="utf-8")
    return folder


def test_a_copied_bert_has_the_ids_of_its_file(sides: dict[str, Side], tmp_path: Path) -> None:
    own = Tokenizer.from_file(str(bert_of_transformers(tmp_path) / TOKENIZER))
    mended = sides[COPIED].tokenizer
    for line in odd_lines(COUNT, 5):
        assert (mended.encode(line).ids, mended.encode(line).offsets) == (
            own.encode(line).ids,
            own.encode(line).offsets,
        )


@pytest.fixture(scope="module")
def in_js(sides: dict[str, Side]) -> dict[str, dict[str, Read]]:
    return in_javascript(sides)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_have_the_same_ids_and_texts(
    kind: str, sides: dict[str, Side], in_js: dict[str, dict[str, Read]]
) -> None:
    for name in (each for each in sides if each.partition(",")[0] == kind):
        lines = sides[name].lines
        assert len(lines) == COUNT
        for reader in READERS:
            assert differences(sides[name].in_python(), in_js[name][reader], lines) == [], (name, reader)


def test_odd_lines_are_read_too(sides: dict[str, Side]) -> None:
    plain = {*plain_lines(5 * COUNT, 7)}
    for name, side in sides.items():
        assert len({*side.lines} - plain) > ODD, name


def test_few_lines_are_left_out(sides: dict[str, Side]) -> None:
    """But for characters of SentencePiece's own maps, which these models have not, and those without a piece."""
    texts = odd_lines(COUNT, 7)
    for name, side in sides.items():
        why = Counter(filter(None, map(side.why_not, texts)))
        assert max((count for rule, count in why.items() if rule not in (MAP, BYTES)), default=0) < FEW, name
        assert why[MAP] < MANY, name
        assert (why[BYTES] > 0) == (name == "t5-bytes")
