"""What strangers' folders begin with: families, tokenizers, other trainers' models, audio, and bundles of these."""

from __future__ import annotations

import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

from tests import recorded

FAMILIES = (  # of transformers, and Whisper
    *("bart", "bert-labels", "distilbert", "flan-t5", "gemma2", "gemma3-images", "gpt2", "llama-3", "llama-yarn"),
    *("m2m_100-language", "marian-defaults", "mbart-50", "mistral-window", "opt-post-narrow", "pegasus"),
    *("phi3-longrope", "qwen3", "roberta-tokens", "sentences-first", "sentences-mean", "whisper"),
)
TOKENIZERS = {  # with a model of this family
    "bert": "bert",
    "gemma": "gemma2",
    "gpt2": "gpt2",
    "llama-new": "llama",
    "m2m100": "m2m_100",
    "marian-languages": "marian",
    "mbart50": "mbart",
    "qwen2": "qwen2",
    "roberta": "roberta",
    "t5-bytes": "marian",
    "xlm-roberta": "xlm-roberta",
}
CTRANSLATE2 = ("bart-int8", "bert", "gpt2", "llama-float16", "llama-linear", "own")
OWN = ("rules", "loose", "shards", "pickle")  # with txport.toml; without a config; in two files; in a pickle
AUDIO = ("a.wav", "float.wav", "a.flac", "a.ogg", "a.aiff")
BUNDLES = ("speech", "chat", "languages", "sentences")
RATE = 16_000


def make_bases(folder: Path, checkpoint: Path) -> None:
    """All of them, in folders by their names; some are made of a sound checkpoint."""
    for name in FAMILIES:
        source = recorded.WHISPER if name == "whisper" else recorded.FAMILIES / name
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.npz", "expected.json"))
    for name, family in TOKENIZERS.items():
        _tokenizer(folder / f"tokenizer-{name}", family, name)
    for name in CTRANSLATE2:
        source = recorded.CTRANSLATE2 / name
        shutil.copytree(source, folder / f"ctranslate2-{name}", ignore=shutil.ignore_patterns("expected.npz"))
    _trainers(folder)
    _own(folder, checkpoint)
    _audio(folder / "audio")
    _bundles(folder)


def _tokenizer(folder: Path, family: str, name: str) -> None:
    from tests.text.grown import grown
    from txport.models.names import TARGET_TOKENIZER, TOKENIZER
    from txport.text.convert import companions_of

    files = companions_of(recorded.TOKENIZERS / name)
    vocabularies = (json.loads(str(files.get(each, "{}"))) for each in (TOKENIZER, TARGET_TOKENIZER))
    grown(folder, family, name, max(map(_size, vocabularies)))


def _size(tokenizer: Any) -> int:
    """One more than the last id that a model must have."""
    words = tokenizer.get("model", {}).get("vocab", {})
    ids = {text: at for at, (text, *_) in enumerate(words)} if isinstance(words, list) else words
    last = ids.get(" outside the vocabulary", len(ids)) - 1
    return 1 + max([last, *(each["id"] for each in tokenizer.get("added_tokens", []))])


def _trainers(folder: Path) -> None:
    from tests.checkpoints.sources import marian, test_fairseq, test_opennmt

    marian.save(folder / "marian", marian.PLAIN, marian.weights_of(marian.PLAIN))
    vocabulary = "".join(f"w{number}: {number}\n" for number in range(1, 26))
    (folder / "marian" / "vocab.yml").write_text(f"</s>: 0\n{vocabulary}", encoding="utf-8")
    test_fairseq.save(folder / "fairseq", test_fairseq.PLAIN, test_fairseq.weights_of(test_fairseq.PLAIN))
    test_opennmt.save(folder / "opennmt", test_opennmt.PLAIN, test_opennmt.weights_of(test_opennmt.PLAIN))


def _own(folder: Path, checkpoint: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from tests.checkpoints.importing.layouts import HYPERPARAMETERS
    from txport.models.names import CONFIG, INDEX, PICKLE, RULES, TOKENIZER, WEIGHTS

    weights = load_file(checkpoint / WEIGHTS)
    values = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
    for name in OWN:
        (folder / name).mkdir(parents=True)
    for name in ("rules", "shards", "pickle"):
        shutil.copyfile(checkpoint / TOKENIZER, folder / name / TOKENIZER)
    config = "".join(
        f"{key} = {json.dumps(each)}\n" for key, each in values.items() if key != "architecture" and each is not None
    )
    rules = f'architecture = "transformer"\n\n[config]\n{config}{RULE_LINES}'
    (folder / "rules" / RULES).write_text(rules, encoding="utf-8")
    save_file({f"net.{name}": each for name, each in weights.items()}, folder / "rules" / WEIGHTS)
    save_file({f"net.{name}": each for name, each in weights.items()}, folder / "loose" / WEIGHTS)
    (folder / "loose" / "hparams.json").write_text(json.dumps(HYPERPARAMETERS), encoding="utf-8")
    for name in ("shards", "pickle"):
        shutil.copyfile(checkpoint / CONFIG, folder / name / CONFIG)
    torch.save(weights, folder / "pickle" / PICKLE)
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: files[at % 2] for at, name in enumerate(weights)}
    for file in files:
        save_file({name: each for name, each in weights.items() if places[name] == file}, folder / "shards" / file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "shards" / INDEX).write_text(json.dumps(index), encoding="utf-8")


RULE_LINES = "\n[[rule]]\nrename = { pattern = '^net\\.', to = '' }\n"


def wav(
    data: bytes,
    *,
    form: int = 1,
    channels: int = 1,
    rate: int = RATE,
    bits: int = 16,
    size: int | None = None,
    more: bytes = b"",
) -> bytes:
    """A WAV file whose header says what it likes; `more` are chunks before the data."""
    align = channels * bits // 8
    begin = struct.pack("<HHIIHH", form, channels, rate, rate * align & 0xFFFFFFFF, align & 0xFFFF, bits)
    told = len(data) if size is None else size
    chunks = b"WAVEfmt " + struct.pack("<I", len(begin)) + begin + more + b"data" + struct.pack("<I", told) + data
    return b"RIFF" + struct.pack("<I", len(chunks) if size is None else size) + chunks


def sounds(count: int, form: str = "<i2") -> bytes:
    """Noise of so many samples."""
    import numpy as np

    drawn = np.random.default_rng(0).integers(-9_000, 9_000, count)
    return bytes((drawn / 32_768).astype(form).tobytes() if "f" in form else drawn.astype(form).tobytes())


def _audio(folder: Path) -> None:
    import numpy as np
    import soundfile

    folder.mkdir()
    samples = np.frombuffer(sounds(4_000, "<f4"), np.float32)
    for name in AUDIO:
        stream = io.BytesIO()
        kind = name.rpartition(".")[2]
        soundfile.write(stream, samples, RATE, format=kind, subtype="FLOAT" if name == "float.wav" else None)
        (folder / name).write_bytes(stream.getvalue())


def _bundles(folder: Path) -> None:
    from tests.seeded import bundle_of
    from txport.checkpoints.checkpoint import load_checkpoint

    made: dict[str, tuple[Path, str]] = {
        "speech": (recorded.WHISPER, "cpu"),
        "chat": (folder / "tokenizer-llama-new", "cpu"),
        "languages": (folder / "tokenizer-m2m100", "portable"),
        "sentences": (folder / "sentences-mean", "portable"),
    }
    for name, (checkpoint, target) in made.items():
        bundle_of(load_checkpoint(str(checkpoint)), folder / name, target)
