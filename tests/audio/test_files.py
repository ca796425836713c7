"""Audio files: every format gives the same samples, and what is no audio ends in one line."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import txport
from tests.audio.noise import RATE, noise
from tests.recorded import WHISPER
from tests.seeded import bundle_of
from txport.audio import mp3, reading
from txport.audio.spectrogram import log_mel
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli.commands import cli
from txport.errors import AudioError, OutOfMemoryError, TxportError, UnsupportedError
from txport.models.audio import Features
from txport.system import memory

soundfile = pytest.importorskip("soundfile")
READS = Features(size=10, frames=100, longest=50, sampling_rate=RATE, hop_length=160, n_fft=400)


def samples_of(path: Path) -> Any:
    return np.concatenate([*reading.read_audio(path, READS)])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(load_checkpoint(str(WHISPER)), tmp_path_factory.mktemp("files") / "bundle", "cpu").path


@pytest.mark.parametrize(
    ("name", "subtype", "near"),
    [("a.wav", "FLOAT", 0.0), ("a.wav", "PCM_16", 1e-4), ("a.wav", "PCM_24", 1e-6), ("a.flac", "PCM_16", 1e-4)],
)
def test_a_file_gives_the_samples_that_were_written(tmp_path: Path, name: str, subtype: str, near: float) -> None:
    samples = noise("short")
    soundfile.write(tmp_path / name, samples, RATE, subtype=subtype)
    np.testing.assert_allclose(samples_of(tmp_path / name), samples, rtol=0, atol=near)


def test_channels_become_their_mean(tmp_path: Path) -> None:
    samples = noise("short")
    soundfile.write(tmp_path / "a.wav", np.stack([samples, 0 * samples], 1), RATE, subtype="FLOAT")
    np.testing.assert_allclose(samples_of(tmp_path / "a.wav"), samples / 2, rtol=0, atol=1e-7)


def test_another_rate_is_brought_to_the_models(tmp_path: Path) -> None:
    pytest.importorskip("soxr")
    time = np.arange(8000) / 8000
    soundfile.write(tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 440 * time), 8000, subtype="FLOAT")
    found = samples_of(tmp_path / "a.wav")
    assert len(found) == RATE
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(found[1000:-1000], expected[1000:-1000], rtol=0, atol=1e-3)


@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_blocks_are_the_whole_file(rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("soxr")
    soundfile.write(tmp_path / "a.wav", np.stack([noise("longer"), noise("longer")], 1), rate, subtype="FLOAT")
    whole = samples_of(tmp_path / "a.wav")
    monkeypatch.setattr(reading, "BLOCK", 2 * 7_001)
    blocks = [*reading.read_audio(tmp_path / "a.wav", READS)]
    assert len(blocks) > 5
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(log_mel(np.array_split(whole, 9), READS), log_mel([whole], READS))


def test_compressed_silence_takes_little_more_memory_than_its_features(tmp_path: Path) -> None:
    pytest.importorskip("soxr")
    path = tmp_path / "a.flac"
    with soundfile.SoundFile(path, "w", 48_000, 2, "PCM_16") as file:
        for _ in range(5):
            file.write(np.zeros((60 * 48_000, 2), np.int16))  # 115 MB as floats, in all
    log_mel(reading.read_audio(path, READS), READS)
    tracemalloc.start()
    found = log_mel(reading.read_audio(path, READS), READS)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size < 200_000
    assert most < 60e6, (found.nbytes, most)


def test_audio_whose_features_do_not_fit_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "a.wav", noise("longer"), RATE)
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(OutOfMemoryError, match=r"hours of audio, needs .* of memory, .*; split it"):
        samples_of(tmp_path / "a.wav")


def encoded(**how: Any) -> bytes:
    """Return 20 s, of which the second half is silence."""
    file = io.BytesIO()
    soundfile.write(file, np.r_[np.resize(noise("longer"), 10 * RATE), np.zeros(10 * RATE)], RATE, **how)
    return file.getvalue()


def test_no_part_of_an_mp3_is_left_out(tmp_path: Path) -> None:
    """Decoders stop where the first header says, or where they guess from the first frames if there is none."""
    if "MP3" not in soundfile.available_formats():
        pytest.skip("this libsndfile reads no MP3")
    whole = encoded(format="MP3", bitrate_mode="VARIABLE")
    assert len(np.concatenate([*reading.read_audio(whole, READS)])) == pytest.approx(20 * RATE, abs=RATE)
    headless = whole[mp3._frame(whole)[0] :]  # type: ignore[index]
    tagged = b"ID3\x04\0\0\0\0\x01\x05" + bytes(133) + whole
    for part, more in ((headless, 10), (whole + whole, 20), (whole + tagged, 20), (tagged + bytes(9), None)):
        path = tmp_path / "a.mp3"
        path.write_bytes(part)
        if more is None:
            assert len(samples_of(path)) == pytest.approx(20 * RATE, abs=RATE)
            continue
        with pytest.raises(AudioError, match=r"a\.mp3 is (\d+) s longer than its header says; convert it") as caught:
            samples_of(path)
        assert abs(int(str(caught.value).split(" is ")[1].split()[0]) - more) < 5


def test_a_flac_that_does_not_tell_its_length_is_refused() -> None:
    """One that was written to a pipe: 36 bits at byte 21 are its number of samples, 0 is unknown."""
    written = bytearray(encoded(format="FLAC"))
    written[21] &= 0xF0
    written[22:26] = bytes(4)
    with pytest.raises(AudioError, match="the header of audio does not tell how long it is; convert it"):
        np.concatenate([*reading.read_audio(bytes(written), READS)])


def damaged(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.wav"
    if kind == "empty":
        soundfile.write(path, np.zeros(0), RATE)
    elif kind == "nan":
        soundfile.write(path, np.array([0.1, np.nan]), RATE, subtype="FLOAT")
    elif kind == "text":
        path.write_text("this is no audio")
    elif kind == "nothing":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "header":
        soundfile.write(path, noise("short"), RATE)
        path.write_bytes(path.read_bytes()[:30])
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", "holds no samples"),
        ("nan", "holds NaN or infinity"),
        ("text", "can't be read as audio"),
        ("nothing", "can't be read as audio"),
        ("header", ""),
        ("folder", "there is no file"),
        ("missing", "there is no file"),
    ],
)
def test_what_is_no_audio_ends_in_one_line(bundle: Path, tmp_path: Path, kind: str, message: str) -> None:
    done = CliRunner().invoke(cli, ["run", str(bundle), str(damaged(tmp_path, kind))])
    assert isinstance(done.exception, TxportError)
    assert done.exception.exit_code == 2
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_file_of_days_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "a.wav", noise("whole"), RATE)
    monkeypatch.setattr(reading, "LONGEST", 0.5)
    with pytest.raises(AudioError, match="of audio, the most that is read is"):
        samples_of(tmp_path / "a.wav")


@pytest.mark.parametrize("rate", [1, 999, 1_000_001])
def test_a_rate_by_which_little_is_much_is_refused(rate: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise("short"), rate)
    with pytest.raises(AudioError, match=f"has {rate} samples a second, expected 1000 to 1000000"):
        samples_of(tmp_path / "a.wav")


def test_run_writes_down_files(bundle: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise("short"), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "b.wav", noise("long"), RATE, subtype="FLOAT")
    files = [str(tmp_path / name) for name in ("a.wav", "b.wav")]
    plain = CliRunner().invoke(cli, ["run", str(bundle), *files, "--language", "de"])
    own = txport.load(bundle).transcribe([noise("short"), noise("long")], language="de")
    assert plain.output.splitlines() == [each.text for each in own]
    timed = CliRunner().invoke(cli, ["run", str(bundle), files[1], "--timestamps", "--language", "de"])
    first = own[1].segments[0]
    assert timed.output.splitlines()[0] == f"{first.start:.2f}\t{first.end:.2f}\t{first.text}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--language", "xx"], "language must be one of de|en|fr|language must be one of en, de, fr; got 'xx'"),
        (["--nbest", "2", "--beams", "2"], "--nbest needs a model that reads text; this model reads audio"),
        (["--stream"], "--stream needs a model that reads text"),
        (["--truncate"], "--truncate needs a model that reads text"),
        (["--batch-tokens", "5"], "--batch-tokens needs a model that reads text"),
        (["--pooling", "mean"], "--pooling needs a model that can embed"),
    ],
)
def test_options_that_mean_nothing_for_audio_are_refused(bundle: Path, options: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["run", str(bundle), "a.wav", *options])
    assert isinstance(done.exception, UnsupportedError)
    assert message.split("|")[-1] in str(done.exception)


@pytest.fixture(scope="module")
def of_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(load_checkpoint("preset:tiny"), tmp_path_factory.mktemp("text") / "bundle", "portable").path


def test_audio_for_a_model_of_text_is_refused(of_text: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise("short"), RATE)
    done = CliRunner().invoke(cli, ["run", str(of_text), str(tmp_path / "a.wav")])
    assert "is an audio file, and this model reads text" in str(done.exception)
    done = CliRunner().invoke(cli, ["run", str(of_text), "5 7", "--language", "de"])
    assert "--language needs a model that reads audio; this model reads text" in str(done.exception)


def test_text_for_a_model_of_audio_is_refused(bundle: Path, of_text: Path) -> None:
    model = txport.load(bundle)
    calls: list[Any] = [lambda: model.generate("a"), lambda: list(model.score("a", "b")), lambda: model.stream("a")]
    for call in calls:
        with pytest.raises(UnsupportedError, match="this model reads audio, not text: use transcribe"):
            call()
    with pytest.raises(UnsupportedError, match="this model reads text: use generate"):
        txport.load(of_text).transcribe(noise("short"))
