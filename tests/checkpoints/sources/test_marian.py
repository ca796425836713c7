"""Marian's `.npz`: what is loaded computes what Marian does."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import txport
from tests.checkpoints.sources.marian import ALL, PLAIN, VARIANTS, Marian, save, weights_of
from tests.checkpoints.sources.plain import check_logits, check_refused, check_wrong_values, damage
from tests.seeded import bundle_of
from txport.checkpoints.checkpoint import config_of, load_checkpoint
from txport.checkpoints.sources.marian.folder import OPTIONS
from txport.checkpoints.sources.trainers import NEVER
from txport.errors import ConfigError


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_loaded_computes_what_marian_does(name: str, tmp_path: Path) -> None:
    options = PLAIN | VARIANTS[name]
    weights = weights_of(options)
    folder = save(tmp_path / "marian", options, weights)
    check_logits(folder, Marian(options, weights).logits, vocabulary=26, cut=1)


def test_the_start_token_is_zeros_and_is_never_written(tmp_path: Path) -> None:
    model = load_checkpoint(str(save(tmp_path / "marian", PLAIN, weights_of(PLAIN)))).model
    start = model.facts.writes.start
    assert start == 26
    assert not model.target_embedding.tokens.weight[start].any()
    assert model.projection.bias[start] == NEVER


def test_old_files_have_the_projection_the_other_way_round(tmp_path: Path) -> None:
    options = PLAIN | {"tied-embeddings": False}
    weights = weights_of(options)
    old = dict(weights)
    old["decoder_ff_logit_out_W"] = np.ascontiguousarray(old.pop("decoder_ff_logit_out_Wt").T)
    check_logits(save(tmp_path / "marian", options, old), Marian(options, weights).logits, vocabulary=26, cut=1)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_model_is_refused(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    options = PLAIN | VARIANTS[str(rng.choice(sorted(VARIANTS)))]
    what, weights = damage(weights_of(options), rng)
    assert check_refused(save(tmp_path / "marian", options, weights)), what


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    path = save(tmp_path / "marian", PLAIN, weights_of(PLAIN)) / "model.npz"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "is not a whole .npz file" in check_refused(path.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "s2s"}, "type 's2s' is not supported; it must be 'transformer'"),
        (
            {"transformer-ffn-activation": "gelu"},
            "transformer-ffn-activation 'gelu' is not supported; supp",
        ),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg 'rnn' is not supported"),
        ({"transformer-tied-layers": [1, 1]}, r"transformer-tied-layers \[1, 1\] is not supported"),
        ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings True is not"),
        (
            {"transformer-postprocess": "dhn"},
            "transformer-preprocess '' and transformer-postprocess 'dhn' and",
        ),
        ({"transformer-postprocess-emb": "h"}, "transformer-postprocess-emb 'h' is not supported; it must be 'd'"),
        ({"transformer-attention-mask": "alibi"}, "transformer-attention-mask 'alibi' is not supported"),
        ({"transformer-decoder-dim-ffn": 8}, "transformer-decoder-dim-ffn 8 is not supported; it must be 0 or 24"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth 3 is not supported"),
        ({"dim-vocabs": [30]}, "it is not the model of a Marian: ValueError"),
        ({"dim-vocabs": None}, "it is not the model of a Marian: TypeError"),
        ({"dim-emb": "16"}, "d_model must be int, got '16'"),
        ({"enc-depth": 0}, "encoder_layers must be at least 1, got 0"),
        ({"tied-embeddings": "yes"}, "tied-embeddings 'yes' is not supported"),
        ({"tied-embeddings-all": True}, "dim-vocabs 30 and 26 must be alike"),
        ({"transformer-preprocess": 3}, "transformer-preprocess must be letters, got 3"),
    ],
)
def test_options_that_nothing_expresses_are_refused_by_name(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "marian", PLAIN | change, weights_of(PLAIN))
    with pytest.raises(ConfigError, match=rf"model\.npz: {message}"):
        config_of(folder)


WRONG: list[Any] = [None, True, -1, 0, 1.5, 10**13, "x", [], ["x"], {"a": [1]}]


def test_a_wrong_value_of_any_option_is_refused_or_read(tmp_path: Path) -> None:
    weights = {"Wemb": np.zeros((2, 2), np.float32)}
    check_wrong_values(PLAIN, WRONG, lambda options: save(tmp_path / "marian", options, weights))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "it must map names to values, got None"),
        (b"- 1", "it must map names to values, got [1]"),
        (b"a: &x 1\nb: *x", "it has an alias"),
        (b"a: 1\na: 2", "it names a key twice"),
        (b"!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        (b"a: [" + b"[" * 4000, "it is nested too deep"),
        (b"\xff\xfe", "UnicodeDecodeError"),
        (b"a: !!timestamp 9999-99-99", "month must be"),
        (b"? [a]\n: 1", "it is not YAML"),
        (b"a: " + b"9" * 5000, "Exceeds the limit"),
        (b"dim-vocabs: {}", "not enough values"),
    ],
)
def test_options_that_are_no_options_are_refused(text: bytes, reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", **{OPTIONS: np.frombuffer(text or b"\0", np.uint8)})
    assert reason in check_refused(tmp_path)


def test_files_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    assert "a.npz holds no special:model.yml" in check_refused(tmp_path)
    save(tmp_path, PLAIN, weights_of(PLAIN), "model.npz")
    load_checkpoint(str(tmp_path))  # beside an optimizer's file, say
    save(tmp_path, PLAIN, weights_of(PLAIN), "model.iter1000.npz")
    assert "holds 2 models (model.iter1000.npz, model.npz); keep the one" in check_refused(tmp_path)


def test_python_objects_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", **{OPTIONS: np.array([{"a": 1}], object)})
    assert "holds Python objects, which may be code" in check_refused(tmp_path)


def test_an_array_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "marian", PLAIN, weights_of(PLAIN))
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9999), }"
    with zipfile.ZipFile(folder / "model.npz", "a") as archive:
        archive.writestr("more.npy", header.ljust(127) + b"\n")
    assert "'more.npy' has 0 bytes, expected 3999" in check_refused(folder)


@pytest.mark.parametrize("header", [b"{'descr': '<f4', 'shape': (", b'{\'descr\': """', b"1L L", b"\t \\"])
def test_a_header_that_is_no_python_is_refused(header: bytes, tmp_path: Path) -> None:
    folder = save(tmp_path / "marian", PLAIN, weights_of(PLAIN))
    with zipfile.ZipFile(folder / "model.npz", "a") as archive:
        archive.writestr("more.npy", b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n")
    assert "is not a whole .npz file" in check_refused(folder)


def test_an_archive_that_unfolds_without_end_is_refused_unread(tmp_path: Path) -> None:
    folder = save(tmp_path / "marian", PLAIN, weights_of(PLAIN))
    with zipfile.ZipFile(folder / "model.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.npy", bytes(20_000_000))
    assert "the most is 100 times as many" in check_refused(folder)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def sentencepiece(*pieces: str) -> bytes:
    kinds = [b"\x18\x02" if each == "<unk>" else b"\x18\x03" for each in pieces]
    texts = [varint(len(each.encode())) + each.encode() for each in pieces]
    messages = [b"\x0a" + text + b"\x15\0\0\x80\x3f" + kind for text, kind in zip(texts, kinds, strict=True)]
    return b"".join(b"\x0a" + varint(len(each)) + each for each in messages)


SPLITTER = sentencepiece("<unk>", "<s>", "</s>")


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ({}, 0),
        ({"vocab.yml": b"</s>: 0\n<unk>: 1\nx: 2\n"}, 0),
        ({"vocab.yml": b'"<unk>": 0\n"</s>": 2\n"a": 1\n'}, 2),
        ({"vocab.de.json": b'{"eos": 3, "UNK": 1}'}, 3),
        ({"vocab.yml": b"? '</s>'\n: 4\n'</s>: 5': 6\n"}, 4),
        ({"vocab.txt": b"<unk>\na\n</s>\r\n"}, 2),
        ({"opus.vocab.txt": b"<unk>\na\n</s>\n", **dict.fromkeys(("source.spm", "target.spm"), SPLITTER)}, 2),
        ({"vocab.spm": sentencepiece("<unk>", "<s>", "</s>", "x" * 200)}, 2),
        ({"vocab.spm": sentencepiece("</s>", "<unk>")}, 0),
        # what splits texts before they come to the model is none of its vocabularies
        ({"opus.vocab.yml": b"</s>: 0\n<unk>: 1\n", **dict.fromkeys(("source.spm", "target.spm"), SPLITTER)}, 0),
        ({"decoder.yml": b"vocabs: [run/a.txt, b.txt]", "a.txt": b"x\n</s>\n", "c.spm": b"?"}, 1),
    ],
)
def test_the_end_token_is_that_of_the_vocabularies(files: dict[str, bytes], end: int, tmp_path: Path) -> None:
    folder = save(tmp_path / "marian", PLAIN, weights_of(PLAIN))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    model = load_checkpoint(str(folder)).model
    assert model.facts.writes.ends == (end,)
    assert model.facts.reads.with_special([9]) == [9, end]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"vocab.de.yml": b"</s>: 0", "vocab.en.yml": b"</s>: 1"},
            "the end token must be one, got 0 in",
        ),
        ({"vocab.yml": b"</s>: 0\n</s>: 1"}, "vocab.yml: it must name each word once, with a number"),
        ({"vocab.txt": b"</s>\na\n<unk>\na\n"}, "vocab.txt, line 4: 'a' is there twice"),
        ({"vocab.yml": b"</s>: 99"}, "eos_id must lie in the target vocabulary of 27, got 99"),
        ({"vocab.yml": b"\xff\xff"}, "vocab.yml is not UTF-8 text"),
        ({"vocab.spm": b"\x0a\xff\xff"}, "vocab.spm is not a model of SentencePiece"),
        ({"vocab.spm": b"PK\x03\x04 none"}, "vocab.spm is not a model of SentencePiece"),
        ({"decoder.yml": b"vocabs: ["}, "decoder.yml: it is not YAML"),
    ],
)
def test_vocabularies_that_do_not_fit_are_refused(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "marian", PLAIN, weights_of(PLAIN))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert message in check_refused(folder)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_bundle_starts_from_zeros_too(target: str, tmp_path: Path) -> None:
    options = PLAIN | ALL | {"transformer-heads": 2, "transformer-postprocess-emb": "nd"}
    weights = weights_of(options)
    bundle = bundle_of(load_checkpoint(str(save(tmp_path / "marian", options, weights))), tmp_path / "bundle", target)
    source = [[9, 5, 3, 7, 0], [8, 11, 0]]
    found = txport.load(bundle.path).search(source, beams=1, max_new_tokens=8)
    for row, ids in zip(found, source, strict=True):
        tokens: list[int] = []
        while len(tokens) < 8 and tokens[-1:] != [0]:
            logits = Marian(options, weights).logits(torch.tensor([ids]), torch.tensor([[0, *tokens]]))
            tokens.append(int(logits[0, -1].argmax()))
        assert list(row[0].tokens) == tokens
