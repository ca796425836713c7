"""Text for other trainers' models: their vocabularies give ids, and what lies beside them cuts words.

What is expected was recorded with SentencePiece and transformers (tests/recorded/tokenizers), or with subword-nmt and
CTranslate2 themselves (`record_text`); here it only gets the ids of another vocabulary.
"""

from __future__ import annotations

import json
import random
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import txport
from tests.checkpoints.sources import marian, test_fairseq, test_opennmt
from tests.checkpoints.sources.plain import check_refused
from tests.recorded import TEXTS, TOKENIZERS
from tests.seeded import bundle_of
from tests.text.corpus import lines
from tests.text.test_agreement import said
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.checkpoints.folder import digest
from txport.checkpoints.sources.ctranslate2.vocabulary import texts as ctranslate2_texts
from txport.checkpoints.sources.fairseq import SPECIAL
from txport.errors import CheckpointError, TextError, TxportError, UnsupportedError
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.text.base import Tokenizer
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer
from txport.text.languages import LanguageReader
from txport.text.load import tokenizer_of
from txport.text.sentencepiece import read_pieces
from txport.text.trainers.words import numbered
from txport.text.usage import read_usage

Ids = Mapping[str, int]


def pieces_of(path: Path) -> list[str]:
    return [piece.text for piece in read_pieces(path).pieces]


def shuffled(tokens: Sequence[str], seed: int = 0) -> list[str]:
    return random.Random(seed).sample(list(tokens), len(tokens))


def laid(folder: Path, **files: str) -> Path:
    """Files of tests/recorded/tokenizers by other names, in which dots stand as `__`."""
    folder.mkdir(exist_ok=True)
    for name, path in files.items():
        shutil.copyfile(TOKENIZERS / path, folder / name.replace("__", "."))
    return folder


def check_lines(tokenizer: Tokenizer, recorded: Sequence[Sequence[int]], texts: Sequence[str], unknown: int) -> None:
    """Sources have the ids that were recorded; what is unknown is refused or left out where that is asked for."""
    assert len(recorded) == 150
    for ids, text in zip(recorded, texts, strict=True):
        known = [each for each in ids if each != unknown]
        assert tokenizer.encode(text) == list(ids), text
        assert tokenizer.encode(text, "skip") == known
        if known != list(ids):
            with pytest.raises(TextError):
                tokenizer.encode(text, "error")


def check_written(tokenizer: Tokenizer, recorded: Sequence[Sequence[int]], texts: Sequence[str], unknown: int) -> None:
    """Targets are written as was recorded."""
    for ids, text in zip(recorded, texts, strict=True):
        if unknown not in ids:
            assert tokenizer.decode(ids) == text


def renumbered(name: str, old: Sequence[str], new: Ids, drops: int = 0) -> tuple[list[list[int]], list[str]]:
    """What was recorded of a class, by the ids of another vocabulary, without so many first tokens."""
    values = said(name)
    return [[new[old[each]] for each in ids[drops:]] for ids in values["ids"]], values["texts"]


def tokenizer_for(checkpoint: Checkpoint) -> Tokenizer:
    assert checkpoint.folder is not None
    return tokenizer_of(checkpoint.companions, checkpoint.folder, checkpoint.facts)


def marian_folder(folder: Path, sizes: tuple[int, int], **options: Any) -> Path:
    values = marian.PLAIN | {"dim-vocabs": list(sizes)} | options
    return marian.save(folder, values, marian.weights_of(values))


@pytest.mark.parametrize("named", [True, False])
def test_marian_has_the_ids_of_its_model_of_sentencepiece(named: bool, tmp_path: Path) -> None:
    size = len(pieces_of(TOKENIZERS / "t5/spiece.model"))
    folder = laid(marian_folder(tmp_path / "m", (size, size)), vocab__spm="t5/spiece.model")
    if named:
        (folder / "model.npz.decoder.yml").write_text("vocabs:\n  - run/vocab.spm\n  - run/vocab.spm\nbeam-size: 6\n")
    checkpoint = load_checkpoint(str(folder))
    assert {TOKENIZER, TARGET_TOKENIZER} == checkpoint.companions.keys()  # targets have a token more, for the start
    tokenizer = tokenizer_for(checkpoint)
    recorded = said("t5")
    check_lines(tokenizer, recorded["ids"], lines(150, 2), recorded["unknown"])
    check_written(tokenizer, recorded["ids"], recorded["texts"], recorded["unknown"])


def test_marian_takes_one_tokenizer_where_source_and_target_are_one(tmp_path: Path) -> None:
    size = len(pieces_of(TOKENIZERS / "t5/spiece.model"))
    folder = marian_folder(tmp_path / "m", (size, size), **{"tied-embeddings-all": True})
    checkpoint = load_checkpoint(str(laid(folder, vocab__spm="t5/spiece.model")))
    assert checkpoint.companions.keys() == {TOKENIZER}


@pytest.mark.parametrize("decoder", ["vocabs: [b.spm, a.spm]", ""])
def test_a_pair_of_models_is_told_by_the_decoder_or_by_names(decoder: str, tmp_path: Path) -> None:
    names = ("b.spm", "a.spm") if decoder else ("vocab.src.spm", "vocab.trg.spm")
    spm = [TOKENIZERS / "marian" / name for name in ("source.spm", "target.spm")]
    sizes = [len(pieces_of(path)) for path in spm]
    folder = marian_folder(tmp_path / "m", (sizes[0], sizes[1]))
    for path, name in zip(spm, names, strict=True):
        shutil.copyfile(path, folder / name)
    if decoder:
        (folder / "decoder.yml").write_text(decoder)
    source, target = (numbered(pieces_of(path)) for path in spm)
    tokenizer = tokenizer_for(load_checkpoint(str(folder)))
    other = {token: source.get(token, source["<unk>"]) for token in shared()}  # some are the target's alone
    recorded, _ = renumbered("marian", shared(), other)
    check_lines(tokenizer, recorded, lines(150, 2), source["<unk>"])
    assert tokenizer.tokens([5]) == [list(target)[5]]
    if not decoder:
        shutil.move(folder / "vocab.src.spm", folder / "vocab.de.spm")
        assert "nothing says which is of sources and which of targets; add its decoder.yml" in check_refused(folder)


def shared(name: str = "marian") -> list[str]:
    ids = json.loads((TOKENIZERS / name / "vocab.json").read_text(encoding="utf-8"))
    return sorted(ids, key=ids.get)


YAML: dict[str, Callable[[Ids], str]] = {
    "quoted": lambda ids: "".join(f"{json.dumps(token, ensure_ascii=False)}: {id_}\n" for token, id_ in ids.items()),
    "json": json.dumps,
    "plain where it can be": lambda ids: "".join(
        f"{token if token.isalpha() else json.dumps(token, ensure_ascii=False)}: {id_}\n" for token, id_ in ids.items()
    ),
}


@pytest.mark.parametrize("name", ["marian", "marian-languages"])
@pytest.mark.parametrize("style", YAML)
def test_pieces_have_the_ids_of_a_vocabulary_in_yaml(name: str, style: str, tmp_path: Path) -> None:
    tokens = shared(name)[:-1]  # without the padding of transformers
    rest = [*shuffled(tokens[2:]), "yes", "null", "1e3", "0x1F"]
    ids = numbered([*tokens[:2], *rest])
    folder = marian_folder(tmp_path / "m", (len(ids), len(ids)), **{"tied-embeddings-all": True})
    (folder / f"opus.vocab.{'json' if style == 'json' else 'yml'}").write_text(YAML[style](ids), encoding="utf-8")
    laid(folder, source__spm=f"{name}/source.spm", target__spm=f"{name}/target.spm")
    tokenizer = tokenizer_for(load_checkpoint(str(folder)))
    recorded, texts = renumbered(name, tokens, ids)
    check_lines(tokenizer, recorded, lines(150, 2), ids["<unk>"])
    check_written(tokenizer, recorded, texts, ids["<unk>"])
    assert tokenizer.tokens([ids["yes"]]) == ["yes"]


PIECES = TOKENIZERS / "xlm-roberta/sentencepiece.bpe.model"


def xlm_roberta() -> list[str]:
    """The tokens of XLM-R's, as fairseq numbers those of such a model."""
    return [*SPECIAL, *pieces_of(PIECES)[3:]]


def fairseq_folder(folder: Path, rows: Sequence[Sequence[str]], **more: Any) -> Path:
    """A model whose dictionaries have these tokens, behind the special ones."""
    weights = test_fairseq.weights_of(test_fairseq.PLAIN)
    for side, tokens in zip(("encoder", "decoder"), rows, strict=True):
        weights[f"{side}.embed_tokens.weight"] = torch.ones(4 + len(tokens), 16)
    weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"]
    test_fairseq.save(folder, test_fairseq.PLAIN, weights, **more)
    for language, tokens in zip(("de", "en"), rows, strict=True):
        (folder / f"dict.{language}.txt").write_text("".join(f"{each} 1\n" for each in tokens), encoding="utf-8")
    return folder


@pytest.mark.parametrize("in_cfg", [True, False])
def test_fairseq_has_the_ids_of_its_dictionaries(in_cfg: bool, tmp_path: Path) -> None:
    own = xlm_roberta()[4:]
    rows = shuffled(own, 1), [*shuffled(own, 2), "madeupword0000"]
    options = {name: each for name, each in test_fairseq.PLAIN.items() if not name.endswith("_lang")}
    task = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
    more = {"args": None, "cfg": {"model": {**options, "_name": "transformer"}, "task": task}} if in_cfg else {}
    folder = fairseq_folder(tmp_path / "m", rows, **more)
    before = digest(str(folder))
    shutil.copyfile(PIECES, folder / "sentencepiece.bpe.model")
    assert digest(str(folder)) != before
    tokenizer = tokenizer_for(load_checkpoint(str(folder)))
    source, target = (numbered([*SPECIAL, *tokens]) for tokens in rows)
    recorded, _ = renumbered("xlm-roberta", [*xlm_roberta(), "<mask>"], source, drops=1)
    check_lines(tokenizer, recorded, lines(150, 2), source["<unk>"])
    check_written(tokenizer, *renumbered("xlm-roberta", [*xlm_roberta(), "<mask>"], target, drops=1), target["<unk>"])


@pytest.mark.parametrize(("style", "names"), [("__{}__", ["de", "en"]), ("[{}]", ["de_DE", "en_XX"])])
def test_a_multilingual_fairseq_adds_tokens_of_languages(style: str, names: list[str], tmp_path: Path) -> None:
    own = shuffled(xlm_roberta()[4:])
    tongues = [style.format(name) for name in names]
    options = {name: each for name, each in test_fairseq.PLAIN.items() if not name.endswith("_lang")}
    options |= {"task": test_fairseq.MULTI, "langs": names, "encoder_langtok": "src", "decoder_langtok": True}
    options["lang_tok_style"] = "multilingual" if style == "__{}__" else "mbart"
    rows = [*own, *tongues, *(["<mask>"] if style == "[{}]" else [])]
    folder = fairseq_folder(tmp_path / "m", (rows, rows), args=Namespace(**options))
    for name in ("dict.de.txt", "dict.en.txt"):
        (folder / name).write_text("".join(f"{each} 1\n" for each in own), encoding="utf-8")
    shutil.copyfile(PIECES, folder / "sentencepiece.bpe.model")
    ids = numbered([*SPECIAL, *own, *tongues])
    recorded, _ = renumbered("xlm-roberta", [*xlm_roberta(), "<mask>"], ids | {"<mask>": 3}, drops=1)
    tokenizer: Any = tokenizer_for(load_checkpoint(str(folder)))
    check_lines(tokenizer, [[ids[tongues[1]], *row] for row in recorded], lines(150, 2), 3)
    changed = tokenizer.source.between(names[0], names[1])
    assert changed.encode("The weather")[0] == ids[tongues[0]]
    assert changed.forced == ids[tongues[1]]


def test_fairseq_has_the_numbers_of_gpt2_for_tokens(tmp_path: Path) -> None:
    old = json.loads((TOKENIZERS / "gpt2/vocab.json").read_text(encoding="utf-8"))
    numbers = shuffled([str(each) for each in old.values()])[:-6]
    folder = fairseq_folder(tmp_path / "m", (numbers, numbers))
    tokenizer = tokenizer_for(
        load_checkpoint(str(laid(folder, encoder__json="gpt2/vocab.json", vocab__bpe="gpt2/merges.txt")))
    )
    ids = numbered([*SPECIAL, *numbers])
    recorded = said("gpt2")
    expected = [[*(ids.get(str(each), 3) for each in row), 2] for row in recorded["ids"]]
    check_lines(tokenizer, expected, lines(150, 2), 3)
    check_written(tokenizer, expected, recorded["texts"], 3)
    assert any(3 in row for row in expected)
    assert sum(3 in row for row in expected) < 100


def ctranslate2(folder: Path, tokens: Sequence[str], kind: str = "TransformerSpec", **said: Any) -> Tokenizer:
    """The tokenizer of a folder of this vocabulary."""
    name = "shared_vocabulary.json" if kind == "TransformerSpec" else "vocabulary.json"
    (folder / name).write_text(json.dumps(list(tokens)), encoding="utf-8")
    values = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"} | said
    files = ctranslate2_texts(folder, values, (len(tokens), len(tokens)), kind, alike=True)
    assert TARGET_TOKENIZER not in files or files[TARGET_TOKENIZER] != files[TOKENIZER]
    return as_loaded(folder, files)


def as_loaded(folder: Path, files: Mapping[str, Path | str]) -> Tokenizer:
    content = {name: str(each) for name, each in files.items() if name != TEXT}
    source = FileTokenizer(folder / TOKENIZER, content=content[TOKENIZER])
    if TEXT not in files:
        return source
    return LanguageReader(source, read_usage(folder / TEXT, files[TEXT]).languages)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("ends", [True, False])
def test_ctranslate2_has_the_ids_of_its_vocabulary(ends: bool, tmp_path: Path) -> None:
    """Sources end with the end token, but for those of OpenNMT."""
    first = ["<unk>", "<s>", "</s>"] if ends else ["<unk>", "<blank>", "<s>", "</s>"]
    tokens = [*first, *shuffled(xlm_roberta()[4:])]
    folder = laid(tmp_path / "m", source__spm="xlm-roberta/sentencepiece.bpe.model")
    shutil.copyfile(folder / "source.spm", folder / "target.spm")
    recorded, _ = renumbered("xlm-roberta", [*xlm_roberta(), "<mask>"], numbered([*tokens, "<mask>"]), drops=1)
    expected = recorded if ends else [ids[:-1] for ids in recorded]
    check_lines(ctranslate2(folder, tokens), expected, lines(150, 2), 0)


def test_prompts_of_a_decoder_alone_begin_with_the_start_token(tmp_path: Path) -> None:
    tokens = [*pieces_of(TOKENIZERS / "llama/tokenizer.model"), "<extra>"]
    folder = laid(tmp_path / "m", tokenizer__model="llama/tokenizer.model")
    recorded = said("llama")
    check_lines(
        ctranslate2(folder, tokens, "TransformerDecoderSpec"), recorded["ids"], lines(150, 2), recorded["unknown"]
    )


@pytest.mark.parametrize("name", ["bert", "gpt2", "opt", "roberta", "m2m100", "nllb", "marian-languages", "t5"])
def test_files_that_the_converter_copied_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Where `tokenizer_config.json` names a class, it is that; its ids must be those of the vocabulary."""
    expected = companions_of(TOKENIZERS / name)
    last = TARGET_TOKENIZER if TARGET_TOKENIZER in expected else TOKENIZER
    ids = FileTokenizer(Path("x"), content=str(expected[last])).vocabulary
    tokens = [f"madeupword{number}" for number in range(1 + max(ids.values()))]
    for token, id_ in ids.items():
        tokens[id_] = token
    folder = Path(shutil.copytree(TOKENIZERS / name, tmp_path / "m", ignore=shutil.ignore_patterns("config.json")))
    path = folder / "vocabulary.json"
    path.write_text(json.dumps(tokens), encoding="utf-8")
    values = {"unk_token": "<unk>", "eos_token": "</s>"}
    rows = (len(tokens), len(tokens))
    assert ctranslate2_texts(folder, values, rows, "TransformerDecoderSpec", alike=True) == expected
    path.write_text(json.dumps([*tokens[:10], *tokens[11:], tokens[10]]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json gives .* the id \d+, .*vocabulary\.json \d+"):
        ctranslate2_texts(folder, values, rows, "TransformerDecoderSpec", alike=True)


@pytest.mark.parametrize("name", ["nllb", "llama-new", "qwen2"])
def test_a_tokenizer_beside_its_settings_has_their_languages_and_template(name: str, tmp_path: Path) -> None:
    expected = companions_of(TOKENIZERS / name)
    assert TEXT in expected
    content = str(expected[TOKENIZER]) if isinstance(expected[TOKENIZER], str) else expected[TOKENIZER].read_text()
    (tmp_path / TOKENIZER).write_text(content, encoding="utf-8")
    for each in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"):
        if (TOKENIZERS / name / each).is_file():
            shutil.copyfile(TOKENIZERS / name / each, tmp_path / each)
    ids = FileTokenizer(Path("x"), content=content).vocabulary
    tokens = [f"<extra_id_{number}>" for number in range(1 + max(ids.values()))]
    for token, id_ in ids.items():
        tokens[id_] = token
    kind = "TransformerSpec" if name == "nllb" else "TransformerDecoderSpec"
    (tmp_path / ("shared_vocabulary.json" if name == "nllb" else "vocabulary.json")).write_text(json.dumps(tokens))
    files = ctranslate2_texts(tmp_path, {"unk_token": "<unk>"}, (len(tokens), len(tokens)), kind, alike=True)
    assert files[TEXT] == expected[TEXT]


def test_settings_of_marian_without_its_ids_leave_the_models_of_sentencepiece(tmp_path: Path) -> None:
    folder = laid(tmp_path / "m", source__spm="marian/source.spm", target__spm="marian/target.spm")
    tokens = shared()[:-1]
    plain = ctranslate2(folder, tokens)
    shutil.copyfile(TOKENIZERS / "marian/tokenizer_config.json", folder / "tokenizer_config.json")
    assert ctranslate2(folder, tokens).encode("The weather") == plain.encode("The weather")


@pytest.mark.parametrize(("name", "language", "other"), [("m2m100", "en", "fr"), ("nllb", "eng_Latn", "fra_Latn")])
def test_languages_of_a_vocabulary_are_told_as_transformers_tells_them(
    name: str, language: str, other: str, tmp_path: Path
) -> None:
    ids = FileTokenizer(Path("x"), content=str(companions_of(TOKENIZERS / name)[TOKENIZER])).vocabulary
    old = [token.strip() for token in sorted(ids, key=lambda token: ids[token])]
    tokens = [*SPECIAL, *shuffled([each for each in old if each not in SPECIAL])]
    folder = laid(tmp_path / "m", sentencepiece__bpe__model=f"{name}/sentencepiece.bpe.model")
    reader: Any = ctranslate2(folder, tokens)
    recorded, _ = renumbered(name, old, numbered(tokens))
    check_lines(reader, recorded, lines(150, 2), 3)
    assert {language, other} <= reader.languages.tokens.keys()
    token = reader.languages.tokens[other]
    changed = reader.between(other, language)
    assert changed.encode("The weather")[0] == tokens.index(token)
    assert changed.forced == tokens.index(reader.languages.tokens[language])
    with pytest.raises(UnsupportedError, match="there is no language 'xx'"):
        reader.between("xx", None)


def opennmt_folder(folder: Path, tokens: Sequence[str], **options: Any) -> Path:
    values = test_opennmt.PLAIN | {"share_embeddings": True} | options
    model, generator = test_opennmt.weights_of(values)
    table = torch.ones(len(tokens), 16)
    for side in ("encoder", "decoder"):
        model[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] = table
    generator = {"weight": table, "bias": torch.zeros(len(tokens))}
    vocabularies = {"src": list(tokens), "tgt": list(tokens), "data_task": "seq2seq"}
    return test_opennmt.save(folder, values, (model, generator), vocab=vocabularies)


@pytest.mark.parametrize("named", [True, False])
def test_opennmt_has_the_ids_of_the_vocabulary_in_its_checkpoint(named: bool, tmp_path: Path) -> None:
    tokens = [*test_opennmt.SPECIAL, *shuffled(xlm_roberta()[4:])]
    options = {f"{side}_subword_model": f"/run/own.{side}.model" for side in ("src", "tgt")}
    folder = opennmt_folder(tmp_path / "m", tokens, **({"transforms": ["sentencepiece"], **options} if named else {}))
    for name in ("own.src.model", "own.tgt.model") if named else ("spm.model",):
        shutil.copyfile(PIECES, folder / name)
    recorded, texts = renumbered("xlm-roberta", [*xlm_roberta(), "<mask>"], numbered([*tokens, "<pad>"]), drops=1)
    tokenizer = tokenizer_for(load_checkpoint(str(folder)))
    check_lines(tokenizer, [ids[:-1] for ids in recorded], lines(150, 2), 0)
    check_written(tokenizer, [ids[:-1] for ids in recorded], texts, 0)


def words_of(line: str) -> str:
    """See `record_text`."""
    return " ".join("".join(each if each.isalnum() else f" {each} " for each in line).split())


def codes_folder(folder: Path) -> tuple[Path, list[str], list[list[str]]]:
    """A fairseq of what subword-nmt cuts, without its rarest tokens; its tokens, and what was cut."""
    cut = [line.split() for line in json.loads((TEXTS / "subword_nmt/expected.json").read_text(encoding="utf-8"))]
    counts = Counter(token for line in cut for token in line)
    tokens = shuffled(sorted(token for token, count in counts.items() if count > 1))
    fairseq_folder(folder, (tokens, tokens))
    shutil.copyfile(TEXTS / "subword_nmt/codes", folder / "codes")
    return folder, [*SPECIAL, *tokens], cut


def test_codes_cut_words_as_subword_nmt_does(tmp_path: Path) -> None:
    folder, tokens, cut = codes_folder(tmp_path / "m")
    tokenizer = tokenizer_for(load_checkpoint(str(folder)))
    ids = numbered(tokens)
    seen = 0
    for line, written in zip(lines(len(cut), 2), cut, strict=True):
        text = words_of(line)
        known = [ids[each] for each in written if each in ids]
        assert tokenizer.encode(text) == [*(ids.get(each, 3) for each in written), 2]
        if len(known) == len(written):
            assert tokenizer.decode([*known, 2]) == text
            seen += 1
        else:
            with pytest.raises(TextError):
                tokenizer.encode(text, "error")
            assert tokenizer.encode(text, "skip") == [*known, 2]
    assert 50 < seen < len(cut) - 10


def test_codes_of_fastbpe_have_counts_behind_them(tmp_path: Path) -> None:
    folder, _, _ = codes_folder(tmp_path / "m")
    expected = load_checkpoint(str(folder)).companions
    pairs = (folder / "codes").read_text(encoding="utf-8").splitlines()[1:]
    (folder / "codes").rename(folder / "bpecodes")
    (folder / "bpecodes").write_text("".join(f"{pair} 17\n" for pair in pairs), encoding="utf-8")
    assert load_checkpoint(str(folder)).companions == expected


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_text_is_translated_as_ctranslate2_does(target: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TEXTS / "ctranslate2", tmp_path / "m"))
    laid(folder, source__spm="marian/source.spm", target__spm="marian/target.spm")
    bundle = bundle_of(load_checkpoint(str(folder)), tmp_path / "bundle", target)
    recorded = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    found = txport.load(bundle.path).generate(
        [each["source"] for each in recorded], beams=1, max_new_tokens=12, min_new_tokens=0
    )
    assert len(recorded) == 24
    assert [each.output for each in found] == [each["target"] for each in recorded]


FILES = {  # of text, of each trainer's folder
    "marian": ("vocab.yml", "source.spm", "target.spm"),
    "codes": ("codes", "dict.de.txt", "dict.en.txt"),
    "gpt2": ("encoder.json", "vocab.bpe", "dict.de.txt"),
    "ctranslate2": ("source_vocabulary.json", "target_vocabulary.json", "source.spm"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder of each trainer. Read only: a test that alters one copies it."""
    folder = tmp_path_factory.mktemp("folders")
    size = len(shared())
    opus = marian_folder(folder / "marian", (size, size))
    (opus / "vocab.yml").write_text(YAML["quoted"](numbered(shared())), encoding="utf-8")
    laid(opus, source__spm="marian/source.spm", target__spm="marian/target.spm")
    codes_folder(folder / "codes")
    numbers = [str(number) for number in range(300)]
    gpt2 = fairseq_folder(folder / "gpt2", (numbers, numbers))
    laid(gpt2, encoder__json="gpt2/vocab.json", vocab__bpe="gpt2/merges.txt")
    own = Path(shutil.copytree(TEXTS / "ctranslate2", folder / "ctranslate2"))
    laid(own, source__spm="marian/source.spm", target__spm="marian/target.spm")
    return folder


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("marian", "vocab.yml", "a: 0\n</s>: 1\n", "vocab.yml has no '<unk>', which texts need"),
        ("marian", "vocab.yml", "</s>: 0\n<unk>: 1\na: 9999999", "vocab.yml has 10000000 tokens, the model 483"),
        ("marian", "vocab.yml", "</s>: 0\n<unk>: 1\na: 1", "vocab.yml gives one id to two tokens"),
        ("marian", "vocab.yml", "</s>: 0\n<unk>: 1\na: x", "vocab.yml gives 'a' the id 'x', which is none"),
        ("marian", "vocab.yml", "</s>: 0\n<unk>: 1\n<unk>: 1", "it must name each word once, with a number"),
        ("marian", "vocab.yml", "</s>: 0\n<unk>: [1]", "it must map words to numbers"),
        ("marian", "target.spm", "", "target.spm is not a model of SentencePiece"),
        ("codes", "codes", "#version: 0.1\na b\n", "codes is of version '0.1', expected 0.2; learn its codes anew"),
        ("codes", "codes", "#version: 0.2\na b c\n", "codes, line 2: 'a b c' are not two parts of words"),
        ("codes", "codes", "a </w>\n", "codes, line 1: </w> alone is of version 0.1"),
        ("codes", "codes", "\n", "codes has no pairs"),
        ("codes", "dict.de.txt", "a 1\na 2\n", "dict.de.txt, line 2: 'a' is there twice"),
        ("codes", "dict.en.txt", "a\n", "dict.en.txt, line 1: 'a' is not a token and how often it was seen"),
        ("gpt2", "vocab.bpe", "a\n", "vocab.bpe, line 1: 'a' are not two tokens that make a third"),
        ("gpt2", "encoder.json", "{}", "encoder.json is empty"),
        (
            "ctranslate2",
            "source_vocabulary.json",
            json.dumps(["a", "b", "</s>", *map(str, range(273))]),
            "source_vocabulary.json has no '<unk>', which texts need",
        ),
        ("ctranslate2", "tokenizer_config.json", "[", "tokenizer_config.json"),
        ("ctranslate2", "tokenizer.json", "{}", "tokenizer.json is not a tokenizer"),
    ],
)
def test_what_is_wrong_with_a_vocabulary_is_told(
    name: str, file: str, content: str, message: str, folders: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders / name, tmp_path / name))
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(TxportError) as caught:
        load_checkpoint(str(folder))
    assert message in str(caught.value)


def test_files_that_do_not_belong_together_are_refused(folders: Path, tmp_path: Path) -> None:
    codes, gpt2, own = (
        Path(shutil.copytree(folders / name, tmp_path / name)) for name in ("codes", "gpt2", "ctranslate2")
    )
    laid(codes, encoder__json="gpt2/vocab.json", vocab__bpe="gpt2/merges.txt")
    assert "has codes and encoder.json; keep the one that the model was trained with" in check_refused(codes)
    (codes / "vocab.bpe").unlink()
    assert "encoder.json is there, but not vocab.bpe; add it, or take encoder.json away" in check_refused(codes)
    (gpt2 / "dict.en.txt").rename(gpt2 / "dict.fr.txt")
    assert "has dict.de.txt, dict.fr.txt, its checkpoint the target_lang 'en'; add dict.en.txt" in check_refused(gpt2)
    tokens = json.loads((own / "target_vocabulary.json").read_text(encoding="utf-8"))
    (own / "target_vocabulary.json").write_text(json.dumps([*tokens, "more"]), encoding="utf-8")
    sizes = f"target_vocabulary.json has {len(tokens) + 1} tokens, the model {len(tokens)}: it belongs to another model"
    assert sizes in check_refused(own)


def test_what_onmt_tokenize_marked_is_refused(tmp_path: Path) -> None:
    folder = opennmt_folder(tmp_path / "m", [*test_opennmt.SPECIAL, "a"], transforms=["onmt_tokenize"])
    assert load_checkpoint(str(folder)).companions == {}
    shutil.copyfile(PIECES, folder / "spm.model")
    assert "texts went through onmt_tokenize, whose marks no tokenizer.json can say" in check_refused(folder)


def test_without_files_that_cut_words_text_is_token_ids(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TEXTS / "ctranslate2", tmp_path / "m"))
    tokenizer = tokenizer_for(load_checkpoint(str(folder)))
    assert tokenizer.encode("5 6") == [5, 6, 2]
    with pytest.raises(TextError, match=r"has no tokenizer.*; text needs a tokenizer beside"):
        tokenizer.encode("The weather")
