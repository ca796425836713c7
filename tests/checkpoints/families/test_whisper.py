"""Whisper from audio to text: what transformers hears and writes down, through the graphs of all targets."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txport
from tests.audio.noise import PIECES, RATE, noise
from tests.recorded import WHISPER
from tests.runtimes.driven import ENGINES
from tests.seeded import bundle_of
from txport.api import transcription
from txport.api.transcription import Told, Transcriber
from txport.audio.spectrogram import TOGETHER, in_blocks, log_mel, mel_filters
from txport.audio.targets import split
from txport.checkpoints.checkpoint import load_checkpoint
from txport.checkpoints.families.whisper import FAMILY
from txport.errors import AudioError, UnsupportedError
from txport.models.audio import Features
from txport.search.options import Found, SearchOptions
from txport.text.numbers import NumberTokenizer

ASKED: dict[str, dict[str, Any]] = {  # as tests/hugging_face/test_whisper.py asked
    "default": {},
    "german": {"language": "German"},
    "translate": {"task": "translate", "language": "fr"},
    "times": {"timestamps": True},
    "times and beams": {"timestamps": True, "language": "<|en|>", "beams": 3},
    "beams": {"beams": 3},
}


def said() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WHISPER / "expected.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def heard() -> dict[str, np.ndarray]:
    with np.load(WHISPER / "heard.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module", params=ENGINES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> txport.Model:
    folder = tmp_path_factory.mktemp("whisper") / "bundle"
    bundle = bundle_of(load_checkpoint(str(WHISPER)), folder, request.param)
    return txport.load(bundle.path, runtime=ENGINES[request.param])


@pytest.mark.parametrize("asked", ASKED)
def test_what_is_written_down_is_what_transformers_writes_down(model: txport.Model, asked: str) -> None:
    """All pieces of audio beside each other, which end after unequal numbers of windows."""
    expected = said()
    found = model.transcribe([noise(name) for name in PIECES], **ASKED[asked])
    for name, one in zip(PIECES, found, strict=True):
        wanted = expected[name][asked]
        assert [each.tokens for each in one.segments] == [tokens for tokens, _, _ in wanted]
        times = [(each.start, each.end) for each in one.segments]
        np.testing.assert_allclose(times, [each[1:] for each in wanted], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", PIECES)
def test_what_is_heard_is_what_transformers_hears(heard: dict[str, np.ndarray], name: str) -> None:
    reads = load_checkpoint(str(WHISPER)).facts.reads
    assert isinstance(reads, Features)
    np.testing.assert_allclose(log_mel(in_blocks(noise(name)), reads), heard[name], rtol=0, atol=5e-5)


@pytest.mark.parametrize("size", [80, 128])
def test_features_of_published_sizes_are_those_of_transformers(heard: dict[str, np.ndarray], size: int) -> None:
    reads = Features(size=size, frames=200, longest=100, sampling_rate=RATE, hop_length=160, n_fft=400)
    np.testing.assert_allclose(mel_filters(reads), heard[f"filters {size}"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(log_mel(in_blocks(noise("whole")), reads), heard[f"features {size}"], rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (np.zeros(0, np.float32), "holds no samples"),
        (np.zeros((2, 2, 2), np.float32), r"floats of one dim, got an array of shape \(2, 2, 2\)"),
        (np.zeros((2, RATE), np.float32), r"floats of one dim, got an array of shape \(2, 16000\)"),
        (np.zeros((0, 5), np.float32), r"floats of one dim, got an array of shape \(0, 5\)"),
        (np.ones((), np.float32), r"floats of one dim, got an array of shape \(\)"),
        (np.zeros(5, np.int16), "got an array of shape .* and type int16"),
        (np.full(5, np.nan), "holds NaN or infinity"),
        (np.full(5, 1e39), "holds NaN or infinity in float32"),
        (np.full(5, -32768.0), "must lie in -1 to 1, got 32768: divide 16-bit samples by 32768"),
        (7, "audio must be a path, samples, or many of them, got 7"),
        ([7], "audio must be a path or samples, got 7"),
    ],
)
def test_samples_that_are_none_are_refused(model: txport.Model, audio: Any, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        model.transcribe(audio)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "klingon"}, "language must be one of en, de, fr; got 'klingon'"),
        ({"language": 3}, "language must be one of en, de, fr; got 3"),
        ({"task": "sing"}, "task must be one of transcribe, translate; got 'sing'"),
        ({"beams": 2, "nbest": 2}, "audio is written down in one way, got nbest 2"),
        ({"alignment": "hard"}, "alignment can't be given for audio"),
        ({"timestamps": 3}, "timestamps must"),
        ({"max_length": 4}, "max_length 4 leaves no room behind the 4 tokens of a prompt"),
        ({"size": 4}, "unknown option 'size'; supported: language, task,"),
    ],
)
def test_options_that_mean_nothing_for_audio_are_refused(
    model: txport.Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        model.transcribe(noise("short"), **options)


def transcriber(model: txport.Model, find: Any = None, **told: Any) -> Transcriber:
    """Of a model whose checkpoint asks for French, translated."""
    assert model.facts.speech is not None
    speech = dataclasses.replace(model.facts.speech, language="fr", task="translate")
    facts = dataclasses.replace(model.facts, speech=speech)
    asked = {"language": None, "task": None, "timestamps": False, "fallback": False} | told
    return Transcriber(facts, model.tokenizer, find, SearchOptions(), Told(facts, **asked))


@pytest.mark.parametrize(
    ("told", "language", "prompt"),  # 28 is French, 27 German; 29 translates, 30 transcribes
    [
        ({}, "fr", [28, 29, 34]),
        ({"language": "de"}, "de", [27, 29, 34]),
        ({"task": "transcribe"}, "fr", [28, 30, 34]),
        ({"language": "de", "task": "transcribe"}, "de", [27, 30, 34]),
    ],
)
def test_what_is_left_out_is_the_checkpoints(model: txport.Model, told: Any, language: str, prompt: list[int]) -> None:
    prompts: list[list[int]] = []

    def find(requests: Any, _: SearchOptions) -> list[list[Found]]:
        prompts.extend(start for _, start in requests)
        return [[Found((*start, 8), 0.0)] for _, start in requests]

    (found,) = transcriber(model, find, **told).run(noise("short"), 1)
    assert (found.language, prompts) == (language, [prompt])


def test_features_of_long_audio_take_little_more_memory_than_themselves() -> None:
    reads = Features(size=80, frames=3000, longest=1500, sampling_rate=RATE, hop_length=160, n_fft=400)
    samples = np.tile(noise("longer"), 120)  # of ten minutes
    log_mel(in_blocks(samples[:RATE]), reads)
    tracemalloc.start()
    found = log_mel(in_blocks(samples), reads)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    a_chunk = 8 * TOGETHER * (400 + 6 * 201)  # frames, and what is made of their spectrum
    assert most < found.nbytes * 9 / 8 + a_chunk + samples.nbytes / 4


def test_a_piece_of_audio_is_written_down_alike_whatever_is_beside_it(model: txport.Model) -> None:
    pieces = [noise(name) for name in PIECES]
    together = model.transcribe(pieces, timestamps=True)
    for piece, found in zip(pieces, together, strict=True):
        assert model.transcribe(piece, timestamps=True, batch_size=1) == [found]


@pytest.mark.parametrize(
    ("tokens", "frames", "parts", "places"),
    [  # times are from 20 on; a place is 2 frames, of 0.02 seconds
        ([], 100, [([], 0.0, 1.0)], None),
        ([1, 2], 60, [([1, 2], 0.0, 0.6)], None),
        ([20, 1, 2, 30], 100, [([20, 1, 2, 30], 0.0, 0.2)], None),
        ([20, 1, 30, 30, 2, 40], 100, [([20, 1, 30], 0.0, 0.2), ([30, 2, 40], 0.2, 0.4)], None),
        ([1, 30, 30, 2, 40], 100, [([1, 30], 0.0, 0.2), ([30, 2, 40], 0.2, 0.4)], None),  # a beginning without a time
        ([20, 1, 30, 30, 2], 100, [([20, 1, 30, 30], 0.0, 0.2)], 10),
        ([20, 1, 30, 31, 2, 40, 40], 100, [([20, 1, 30], 0.0, 0.2), ([31, 2, 40, 40], 0.22, 0.4)], 20),
    ],
)
def test_a_window_parts_where_two_times_meet(tokens: Any, frames: int, parts: Any, places: int | None) -> None:
    reads = Features(size=10, frames=100, longest=50, sampling_rate=RATE, hop_length=160, n_fft=400)
    found, behind = split(tokens, 20, frames, reads)
    assert behind == places
    assert [each.tokens for each in found] == [each[0] for each in parts]
    np.testing.assert_allclose([each[1:] for each in found], [each[1:] for each in parts], atol=1e-9)


def test_windows_that_are_no_good_are_searched_again(model: txport.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = model.transcribe(noise("short"))[0]
    for unlikely, compressed, is_weak in ((-1e9, 1e9, False), (0.0, 1e9, True), (-1e9, -1.0, True)):
        monkeypatch.setattr(transcription, "LEAST_LIKELY", unlikely)
        monkeypatch.setattr(transcription, "MOST_COMPRESSED", compressed)
        found = model.transcribe(noise("short"), fallback=True)[0]
        assert (found != plain) == is_weak
        assert model.transcribe(noise("short"), fallback=True)[0] == found


def test_windows_without_speech_are_passed_over() -> None:
    """By a stand-in for the model: all targets are improbable, and silence is probable in windows that are silent."""
    facts = load_checkpoint(str(WHISPER)).facts
    reads, speech = facts.reads, facts.speech
    assert isinstance(reads, Features)
    assert speech is not None
    assert speech.first_timestamp is not None
    times = [speech.first_timestamp + place for place in (5, 20)]
    sampled: list[bool] = []
    likelihood = -3.0

    def is_silent(features: np.ndarray) -> bool:
        return bool(features[:, 5:-5].std() < 1e-3)

    def find(requests: Any, options: SearchOptions) -> list[list[Found]]:
        if isinstance(options.logits_processor, transcription.Heard):
            logits = np.zeros((len(requests), facts.writes.size), np.float32)
            logits[:, SPOKEN["<|nospeech|>"]] = [9.0 if is_silent(features) else -9.0 for features, _ in requests]
            options.logits_processor(logits, np.full((len(requests), 1), 25))
        elif options.do_sample:
            sampled.extend(is_silent(features) for features, _ in requests)
        said = [times[0], 8, times[1]]
        return [[Found((*start, *said), 0.0, (0.0,) * len(start) + (likelihood,) * 3)] for _, start in requests]

    sound = noise("whole")[: reads.samples]
    audio = np.concatenate([np.zeros(2 * reads.samples, np.float32), np.resize(sound, reads.samples)])
    model = txport.Model.__new__(txport.Model)
    model.facts, model.tokenizer = facts, NumberTokenizer(facts)
    for threshold, mean, windows in ((0.6, -3.0, [2]), (None, -3.0, [0, 1, 2]), (0.6, -0.5, [0, 1, 2])):
        likelihood = mean
        (found,) = transcriber(model, find, language="de", timestamps=True, no_speech_threshold=threshold).run(audio, 1)
        assert [each.start for each in found.segments] == pytest.approx([at * reads.seconds for at in windows])
    likelihood = -3.0
    list(transcriber(model, find, language="de", no_speech_threshold=0.6, fallback=True).run(audio, 1))
    assert sampled
    assert not any(sampled)
    with pytest.raises(UnsupportedError, match="no_speech_threshold must lie in 0 to 1, got 2"):
        transcriber(model, find, no_speech_threshold=2)


def test_features_are_taken_by_search(model: txport.Model, heard: dict[str, np.ndarray]) -> None:
    (found,) = model.search([heard["whole"]], prefixes=[[27, 30]], max_new_tokens=3)[0]
    assert found.tokens[:2] == (27, 30)
    for wrong, message in ((heard["whole"][:, 1:], "must be floats of shape"), ([1, 2], "must be floats of shape")):
        with pytest.raises(AudioError, match=message):
            model.search([wrong])


SPOKEN = {
    "<|startoftranscript|>": 25,
    "<|en|>": 26,
    "<|de|>": 27,
    "<|fr|>": 28,
    "<|translate|>": 29,
    "<|transcribe|>": 30,
}
SPOKEN |= {"<|startofprev|>": 32, "<|nospeech|>": 33, "<|notimestamps|>": 34}


@pytest.mark.parametrize("forced", [None, [[1, 27], [2, 30], [3, 34]]])
def test_ids_that_files_of_2022_lack_are_the_tokenizers(forced: Any, tmp_path: Path) -> None:
    """Of a folder without the keys of `generation_config.json`, whose tokenizer has the tokens."""
    values = json.loads((WHISPER / "config.json").read_text()) | {"forced_decoder_ids": forced}
    newer = json.loads((WHISPER / "generation_config.json").read_text())
    read = FAMILY.read({**values, "generation_config": {}}, SPOKEN)
    assert dict(zip(read["languages"], read["language_ids"], strict=True)) == {"en": 26, "de": 27, "fr": 28}
    assert (read["transcribe_id"], read["translate_id"], read["no_timestamps_id"]) == (30, 29, 34)
    assert read["language"] == (None if forced is None else "de")
    assert FAMILY.read({**values, "generation_config": newer}, SPOKEN) == FAMILY.read(
        {**values, "generation_config": newer}, None
    )
    english = FAMILY.read({**values, "forced_decoder_ids": [[1, 34]], "generation_config": {}}, SPOKEN)
    assert (english["languages"], english["no_timestamps_id"]) == ((), 34)
