"""Small models that were trained to translate: what a client reads or writes wrongly is seen in their words.

With random weights, any ids give some text. These translate a toy grammar, by tokenizers of SentencePiece's Unigram.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F

from tests.text.test_files import piece
from txport.checkpoints.checkpoint import save_checkpoint
from txport.models.architectures.transformer import Transformer, TransformerConfig
from txport.models.names import TARGET_TOKENIZER, TOKENIZER
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer

NOUNS = {  # with their articles as subject and object
    "dog": ("Hund", "der ein", "den einen"),
    "cat": ("Katze", "die eine", "die eine"),
    "child": ("Kind", "das ein", "das ein"),
    "bird": ("Vogel", "der ein", "den einen"),
    "book": ("Buch", "das ein", "das ein"),
    "mouse": ("Maus", "die eine", "die eine"),
    "baker": ("Bäcker", "der ein", "den einen"),
    "girl": ("Mädchen", "das ein", "das ein"),
}
VERBS = {"sees": "sieht", "finds": "findet", "hears": "hört", "likes": "mag"}
WHEN = {".": ".", " today.": " heute.", " often!": " oft!", ", yes.": ", ja."}
COUNT, STEPS, ROWS, SEED = 400, 300, 32, 0
IGNORED = -100  # of the loss

Pair = tuple[str, str]


def sentences() -> list[Pair]:
    """So many sentences of the grammar, in English and in German."""
    every = itertools.product(NOUNS, ("the", "a"), VERBS, NOUNS, ("the", "a"), WHEN)
    found = []
    for subject, first, verb, other, second, when in random.Random(SEED).sample(list(every), COUNT):
        noun, own, _ = NOUNS[subject]
        named, _, its = NOUNS[other]
        articles = own.split()[first == "a"], its.split()[second == "a"]
        german = f"{articles[0]} {noun} {VERBS[verb]} {articles[1]} {named}{WHEN[when]}"
        found.append((f"{first} {subject} {verb} {second} {other}{when}", german))
    return found


def unigrams(texts: Sequence[str], size: int) -> list[tuple[str, float]]:
    """Pieces with their scores."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=size, unk_token="<unk>", show_progress=False)  # noqa: S106
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(text, score) for text, score in vocabulary if text != "<unk>"]


def write_pieces(path: Path, special: Sequence[str], pieces: Sequence[tuple[str, float]]) -> None:
    """A model of SentencePiece: special tokens, the unknown one, and pieces."""
    first = [piece("<unk>", 2) if each == "<unk>" else piece(each, 3) for each in special]
    path.write_bytes(b"".join([*first, *(piece(text, score=score) for text, score in pieces)]))


def joint(folder: Path, pairs: Sequence[Pair]) -> dict[str, int]:
    """The files of a T5's tokenizer, for both languages; its special ids."""
    pieces = unigrams([text for pair in pairs for text in pair], 120)
    write_pieces(folder / "spiece.model", ("<pad>", "</s>", "<unk>"), pieces)
    (folder / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"extra_ids": 0}', encoding="utf-8")
    return {"pad_id": 0, "start_id": 0, "eos_id": 1}


def paired(folder: Path, pairs: Sequence[Pair]) -> dict[str, int]:
    """The files of a Marian's tokenizers, whose ids lack a piece of the source's; its special ids."""
    tokens = ["</s>", "<unk>"]
    for name, texts in zip(("source.spm", "target.spm"), zip(*pairs, strict=True), strict=True):
        pieces = unigrams(texts, 70)
        write_pieces(folder / name, ("</s>", "<unk>"), [*pieces, ("zebra", -3.0)])
        tokens += [text for text, _ in pieces]
    ids = {token: id_ for id_, token in enumerate(dict.fromkeys([*tokens, "<pad>"]))}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8")
    return {"pad_id": ids["<pad>"], "start_id": ids["<pad>"], "eos_id": 0}


KINDS = {"joint": joint, "paired": paired}


def trained(folder: Path, kind: str) -> Path:
    """A checkpoint that translates, made in seconds; of the kind "paired", source and target have tokenizers each."""
    files = folder / "tokenizer"
    files.mkdir(parents=True)
    pairs = sentences()
    special = KINDS[kind](files, pairs)
    texts = {name: str(text) for name, text in companions_of(files).items()}
    readers = [FileTokenizer(files / name, content=text) for name, text in texts.items()]
    vocabulary = 1 + max(json.loads((files / "vocab.json").read_text()).values()) if kind == "paired" else 0
    sizes = {f"{side}_vocab_size": vocabulary or readers[0].size for side in ("source", "target")}
    shape = {"d_model": 64, "heads": 4, "feed_forward": 64, "encoder_layers": 1, "decoder_layers": 1, "max_length": 48}
    config = TransformerConfig.from_dict({**sizes, **shape, **special, "norm": "pre", "dropout": 0.0})
    model = learnt(
        config, [[readers[0].encode(one) for one, _ in pairs], [readers[-1].encode(two) for _, two in pairs]]
    )
    save_checkpoint(folder / "checkpoint", model, texts[TOKENIZER], texts.get(TARGET_TOKENIZER))
    return folder / "checkpoint"


def learnt(config: TransformerConfig, ids: Sequence[Sequence[Sequence[int]]]) -> Transformer:
    """The model after some hundred steps over sources and targets, which end with the end token."""
    sources, targets = (padded(side, config.pad_id) for side in ids)
    lengths = torch.tensor([len(each) for each in ids[0]])
    given = F.pad(targets[:, :-1], (1, 0), value=config.start_id or 0)
    wanted = targets.masked_fill(padded([[1] * len(each) for each in ids[1]], 0) == 0, IGNORED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Transformer(config).train()
        model.initialise()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, STEPS)
        for _ in range(STEPS):
            rows = torch.randint(len(sources), (ROWS,))
            logits = model(sources[rows], lengths[rows], given[rows])
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(0, 1), wanted[rows].flatten(), ignore_index=IGNORED).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
