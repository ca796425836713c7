"""What applications import, and what it finds for a name."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import logging
import shutil
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import txport
from tests.tiny import SAMPLES, tiny_config, tiny_model
from txport import runtimes
from txport.api import loading, locate
from txport.api import model as api
from txport.bundles.bundle import Bundle, load_bundle
from txport.checkpoints import folder as checkpoint_folder
from txport.checkpoints.checkpoint import save_checkpoint
from txport.errors import (
    BundleError,
    OutputError,
    UnavailableError,
    UnsupportedError,
)
from txport.exporters import export as exporter
from txport.models.names import MANIFEST
from txport.search.options import Searching, SearchOptions
from txport.text.numbers import NumberTokenizer


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> txport.Model:
    return txport.load(bundle.path)


def test_one_text_or_many(model: txport.Model) -> None:
    many = model.generate(list(SAMPLES))
    assert [each.input for each in many] == list(SAMPLES)
    assert [model.generate(text)[0].output for text in SAMPLES] == [each.output for each in many]
    assert model.generate([]) == []
    assert model.generate(text for text in SAMPLES) == many
    assert list(model.generate_iter(SAMPLES[0])) == many[:1], "a text is no iterable of letters"


def test_a_closed_model_frees_its_graphs_and_says_so(bundle: Bundle) -> None:
    with txport.load(bundle.path) as model:
        assert repr(model) == f"<txport.Model: {bundle.path}, transformer (seq2seq), portable fp32, ort on cpu>"
        runtime = weakref.ref(model.runtime)
        other = model.writing_special_tokens()
    for call in (model.generate, model.stream, model.warm, lambda text: model.generate(text, continuous=True)):
        with pytest.raises(UnsupportedError, match="closed"):
            list(call(*([] if call == model.warm else [SAMPLES[0]])))
    assert other.generate(SAMPLES[0]), "a copy keeps them"
    del other
    gc.collect()
    assert runtime() is None


def test_a_model_serves_an_event_loop(model: txport.Model) -> None:
    async def serve() -> list[list[txport.Generated]]:
        return await asyncio.gather(*(asyncio.to_thread(model.generate, "chief", **options) for options in MANY))

    assert asyncio.run(serve()) == [model.generate("chief", **options) for options in MANY]


def test_type_checkers_know_the_options(model: txport.Model) -> None:
    """The comments are needed, or mypy says so."""
    with pytest.raises(UnsupportedError, match="unknown option 'beems'"):
        model.generate(SAMPLES, beems=4)  # type: ignore[call-arg]
    with pytest.raises(UnsupportedError, match="beams must be a whole number, got 'four'"):
        model.generate(SAMPLES, beams="four")  # type: ignore[arg-type]
    hints = get_type_hints(SearchOptions)
    assert {name: hints[name] for name in (each.name for each in fields(SearchOptions))} == get_type_hints(Searching)
    for method, options in ((model.generate_iter, api.Generating), (model.transcribe_iter, api.Transcribing)):
        parameters = inspect.signature(method, eval_str=True).parameters.values()
        named = {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}
        assert named == {name: hint for name, hint in get_type_hints(options).items() if name not in hints}


MANY: list[dict[str, Any]] = [{}, {"beams": 3, "nbest": 2}, {"do_sample": True, "seed": 5}, {"no_repeat_ngram_size": 2}]


def test_many_threads_get_what_one_gets(model: txport.Model) -> None:
    work = [(text, options) for options in MANY for text in ("bad", "chief", "a", "cabbage")]
    expected = [model.generate(text, **options)[0] for text, options in work]
    with ThreadPoolExecutor(6) as executor:
        found = list(executor.map(lambda each: model.generate(each[0], **each[1])[0], work * 2))
    assert found == expected * 2


def test_a_result_is_its_best_hypothesis(model: txport.Model) -> None:
    found = model.generate("chief", beams=4, nbest=3)[0]
    assert len(found.hypotheses) == 3
    assert [each.score for each in found.hypotheses] == sorted((each.score for each in found.hypotheses), reverse=True)
    best = found.hypotheses[0]
    assert (found.output, found.score) == (best.output, best.score)
    assert found.output == model.tokenizer.decode(best.tokens)
    assert found.to_dict()["hypotheses"][0] == {
        "output": best.output,
        "score": best.score,
        "tokens": best.tokens,
        "token_scores": best.token_scores,
        "finish": best.finish,
    }
    assert sum(best.token_scores) / len(best.tokens) == pytest.approx(best.score, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"beams": 3, "nbest": 3}], ids=["greedy", "beam"])
def test_a_result_says_what_ended_it(options: dict[str, Any], model: txport.Model) -> None:
    ends = model.facts.writes.ends
    every = range(model.facts.writes.size)
    short = model.generate("chief", max_new_tokens=2, suppress_tokens=ends, **options)[0]
    assert {each.finish for each in short.hypotheses} == {"length"}
    others = tuple(each for each in every if each not in ends)
    ended = model.generate("chief", suppress_tokens=others, **options)[0]
    assert (ended.finish, ended.hypotheses[0].tokens[-1] in ends) == ("end", True)
    stuck = model.generate("chief", bad_words_ids=tuple((each,) for each in every), **options)[0]
    assert stuck.finish == "stop"


@pytest.mark.parametrize("runtime", ["reference", "torch"])
def test_other_runtimes_find_the_same(runtime: str, model: txport.Model, bundle: Bundle, checkpoint: Path) -> None:
    other = txport.load(bundle.path, runtime=runtime, checkpoint=checkpoint if runtime == "torch" else None)
    for options in ({}, {"beams": 3}):
        expected = model.generate(SAMPLES, **options)
        actual = other.generate(SAMPLES, **options)
        assert [each.hypotheses[0].tokens for each in actual] == [each.hypotheses[0].tokens for each in expected]
        assert [each.score for each in actual] == pytest.approx([each.score for each in expected], abs=1e-5)


def test_stream_reads_no_more_than_it_needs(model: txport.Model) -> None:
    endless = (SAMPLES[number % 4] for number in itertools.count())
    found = list(itertools.islice(model.generate_iter(endless, batch_size=2, max_new_tokens=2), 5))
    assert [each.input for each in found] == [*SAMPLES, SAMPLES[0]]


def test_max_new_tokens(model: txport.Model) -> None:
    whole = model.generate("chief")[0].hypotheses[0].tokens
    assert len(whole) > 3
    for limit in (1, 3):
        assert model.generate("chief", max_new_tokens=limit)[0].hypotheses[0].tokens == whole[:limit]


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("generate", "prefixes, .*source_language, target_language, errors, beams"),
        ("search", "prefixes, batch_"),
        ("stream", "prefix, unknown, special, beams"),
    ],
)
def test_an_unknown_option_is_told_with_all_that_a_method_takes(method: str, own: str, model: txport.Model) -> None:
    with pytest.raises(UnsupportedError, match=f"unknown option 'target'; supported: {own}"):
        getattr(model, method)("bad", target="deu_Latn")


def test_prefixes_are_looked_at_before_any_text(model: txport.Model) -> None:
    def unread() -> Iterator[Any]:
        raise AssertionError("a text was read first")
        yield

    room = r"a prefix and max_new_tokens must not exceed the model's longest sequence, 24; got 26"
    with pytest.raises(UnsupportedError, match=room):
        model.generate_iter(unread(), prefixes=["", "AA B"], max_new_tokens=24)
    with pytest.raises(UnsupportedError, match=room):
        model.search(unread(), prefixes=[[], [5, 6]], max_new_tokens=24)
    with pytest.raises(UnsupportedError, match="a prefix must not hold an end token"):
        model.generate_iter(unread(), prefixes=["AA </s>"])


def test_errors_are_ours_and_the_builtin(model: txport.Model) -> None:
    for builtin in (txport.TxportError, ValueError):
        with pytest.raises(builtin):
            model.generate("")
    with pytest.raises(RuntimeError):
        raise UnavailableError


def test_progress_is_logged_and_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "txport"):
        txport.export("preset:tiny", tmp_path / "out")
    messages = [each.getMessage() for each in caplog.records if each.name == "txport"]
    assert {"reading preset:tiny", "writing the graphs"} <= {*messages}
    assert capfd.readouterr() == ("", "")


def test_export_refuses_a_place_that_is_taken(checkpoint: Path, copied: Path, tmp_path: Path) -> None:
    before = (copied / MANIFEST).read_bytes()
    with pytest.raises(OutputError, match=r"bundle exists; force=True replaces it"):
        txport.export(checkpoint, copied)
    assert (copied / MANIFEST).read_bytes() == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="file is a file, expected a folder"):
        txport.export(checkpoint, tmp_path / "file", force=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_load_asks_for_the_runtime_before_any_costly_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_bundle", lambda *_, **__: pytest.fail("looked for the bundle first"))
    with pytest.raises(UnsupportedError, match="unknown runtime"):
        txport.load("preset:big", runtime="tvm")
    with pytest.raises(UnsupportedError, match="unknown provider"):
        txport.load("preset:big", provider="gpu")


def test_load_on_torch_needs_the_checkpoint(bundle: Bundle, checkpoint: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(), seed=1))
    with pytest.raises(UnsupportedError, match="was not made from this toy: their hashes differ"):
        txport.load(bundle.path, runtime="torch", checkpoint=tmp_path / "toy")
    with pytest.raises(
        UnsupportedError, match="checkpoint needs the torch runtime; ort runs the bundle without a checkpoint"
    ):
        txport.load(bundle.path, checkpoint=checkpoint)
    assert txport.load(bundle.path, runtime="torch", checkpoint=checkpoint).generate("bad")


@pytest.fixture
def named_alike(
    bundle: Bundle, copied: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bundle:
    """In the working folder, a bundle under the name of the checkpoint that ships and that it was made from."""
    monkeypatch.setattr(checkpoint_folder, "SHIPPED", checkpoint.parent)
    monkeypatch.chdir(tmp_path)
    copied.rename(bundle.manifest.checkpoint["name"])
    assert checkpoint_folder.shipped() == ["toy"]
    return locate.find_bundle("toy")


def test_bundle_named_like_the_checkpoint_that_ships(named_alike: Bundle, bundle: Bundle) -> None:
    """A bundle is no checkpoint: where one is wanted, the name still means what ships; where not, the folder."""
    assert (named_alike.path, named_alike.manifest) == (Path("toy"), bundle.manifest)
    assert locate.find_path("toy") == Path("toy")
    source = locate.checkpoint_of(named_alike)
    assert checkpoint_folder.find_folder(source) == checkpoint_folder.SHIPPED / "toy"
    assert api.parity(named_alike, source, {"ort": "cpu"}).passed
    found = [txport.load("toy", runtime=name).generate("bad")[0].hypotheses[0].tokens for name in ("torch", "ort")]
    assert found[0] == found[1]
    exported = txport.export("toy", "toy", force=True)
    assert exported.manifest.files == bundle.manifest.files


def test_checkpoint_named_like_one_that_ships_comes_first(named_alike: Bundle) -> None:
    shutil.rmtree("toy")
    save_checkpoint(Path("toy"), tiny_model(tiny_config(), seed=1))
    assert checkpoint_folder.find_folder("toy") == Path("toy")
    with pytest.raises(BundleError, match="toy is a checkpoint, not a bundle"):
        locate.find_bundle("toy")
    with pytest.raises(OutputError, match="toy holds the checkpoint itself"):
        txport.export("toy", "toy", force=True)


def test_precision_of_a_bundle_is_what_it_was_made_with(bundle: Bundle) -> None:
    assert locate.find_bundle(str(bundle.path), precision="fp32").manifest == bundle.manifest
    with pytest.raises(UnsupportedError, match="was exported in fp32; export it again for fp16"):
        locate.find_bundle(str(bundle.path), precision="fp16")


def test_bundle_can_move(bundle: Bundle, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = copied.rename(tmp_path / "moved here")
    monkeypatch.chdir(tmp_path)
    assert txport.load(moved.name).generate("bad") == txport.load(bundle.path).generate("bad")


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the checkpoints that are really exported."""
    done: list[str] = []
    whole = exporter.export_graphs

    def export_graphs(checkpoint: Any, folder: Path, **options: Any) -> Any:
        done.append(checkpoint.name)
        return whole(checkpoint, folder, **options)

    monkeypatch.setattr(exporter, "export_graphs", export_graphs)
    return done


def test_a_name_is_exported_once_and_again_when_it_is_damaged(
    exports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    first = txport.load("preset:tiny", progress=said.append)
    assert exports == ["preset:tiny"]
    assert any("once" in message for message in said)
    folder = next((tmp_path / "txport" / "bundles").iterdir())
    assert folder.name.startswith("preset-tiny-portable-fp32-")
    assert load_bundle(folder).manifest.parity["verdict"] == "pass"
    said.clear()
    second = txport.load("preset:tiny", progress=said.append)
    assert (exports, said) == (["preset:tiny"], [])
    assert isinstance(first.tokenizer, NumberTokenizer)
    assert first.generate("5 6 7", beams=2) == second.generate("5 6 7", beams=2)
    # The torch runtime finds the checkpoint by the name that the bundle records.
    expected = txport.load("preset:tiny", runtime="torch").generate("5 6 7")[0].hypotheses[0].tokens
    assert first.generate("5 6 7")[0].hypotheses[0].tokens == expected

    damaged = folder / "onnx" / "encoder_model.onnx"
    damaged.write_bytes(damaged.read_bytes()[:-1])

    class ExportedAgainError(Exception):
        """Enough to know: the export itself takes seconds."""

    def export(name: str, out: Path, **options: Any) -> Bundle:
        raise ExportedAgainError(name, out, out.exists())

    monkeypatch.setattr(locate, "export", export)
    with pytest.raises(ExportedAgainError) as caught:
        locate.find_bundle("preset:tiny")
    assert caught.value.args == ("preset:tiny", folder, False)


def test_cache_entry_that_another_process_made_meanwhile_is_used(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(name: str, out: Path, **options: Any) -> Bundle:
        shutil.copytree(bundle.path, out)
        raise OutputError(f"{out} exists")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(locate, "export", export)
    assert locate.find_bundle("preset:tiny").manifest == bundle.manifest


def test_cache_entry_changes_with_precision_and_checkpoint() -> None:
    keys = {
        locate._key(name, "portable", precision)
        for name in ("preset:tiny", "preset:base")
        for precision in ("fp32", "fp16")
    }
    assert len(keys) == 4
    assert not any(set(key) & set(':/\\"*?<>|') for key in keys)


def test_every_runtime_is_there() -> None:
    assert runtimes.installed("portable") == ["ort", "reference"]
    assert runtimes.installed("cpu") == ["ort"]
