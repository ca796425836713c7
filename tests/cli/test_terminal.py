"""Names and texts of others reach the terminal as text."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import txport
from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.cli.processes import ENVIRONMENT, assert_one_line, run, start
from tests.tiny import SPECIAL, VOCABULARY, reseal, tiny_config, tiny_model
from txport import cli
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.cli import tables, textio
from txport.models.names import MANIFEST

EVIL = "\x1b]0;owned\x07\u202e"
SHOWN = r"\x1b]0;owned\x07\u202e"
TALK = ["--min-new-tokens", "6", "--max-new-tokens", "6", "--suppress-tokens", "<pad> <s> <unk> a b d"]
PACKAGE = Path(txport.__file__).parent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command of this process says that exits 2: as one of its own does, without the seconds of PyTorch."""
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    return err


@pytest.mark.parametrize("command", ["inspect", "run", "verify", "export"])
def test_errors_show_names_as_they_are(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, command, tmp_path / EVIL, *([tmp_path / "out"] if command == "export" else []))
    assert err.startswith("txport: ")
    assert err.count("\n") == 1
    assert SHOWN in err
    assert "\x1b" not in err


def test_so_does_the_explanation_of_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["inspect", "bundle", EVIL], ["inspect", f"--{EVIL}"], [EVIL]):
        err = refused(capsys, *arguments)
        assert err.startswith("Usage: txport")
        assert not set("\x1b\x07\u202e") & set(err)


def test_tables_show_names_as_they_are(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = json.loads((copied / MANIFEST).read_text(encoding="utf-8"))
    values["checkpoint"]["name"] = f"a{EVIL}\nverdict: pass"
    (copied / MANIFEST).write_text(json.dumps(values), encoding="utf-8")
    evil = copied.rename(copied.with_name(f"b{EVIL}"))
    reseal(evil)
    for name in ("inspect", "verify"):
        cli.main([name, str(evil)])
        out, err = capsys.readouterr()
        assert not set("\x1b\x07\u202e") & set(out + err)
        assert "\nverdict: pass\n" not in out
        assert SHOWN in out


def test_a_cell_can_not_forge_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(EVIL, ["name"], [("a\nb",), (EVIL,)])
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [SHOWN, "name", "a b", SHOWN]


@pytest.fixture(scope="module")
def speaks_evil(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model whose every word steers a terminal."""
    folder = tmp_path_factory.mktemp("evil")
    words = [f"{EVIL}{number}" for number in range(len(VOCABULARY) - len(SPECIAL) - 3)]
    tokens = spelling_tokenizer((*SPECIAL, "a", "b", "d", *words))
    save_checkpoint(folder / "toy", tiny_model(tiny_config()), tokens)
    return txport.export(folder / "toy", folder / "bundle")


def test_what_a_model_says_is_data_in_a_file_and_text_on_a_terminal(
    speaks_evil: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(speaks_evil.path), "bad", *TALK]
    cli.main(command)
    assert EVIL in capsys.readouterr().out
    for options in ([], ["--stream"], ["--nbest", "2", "--beams", "2"], ["--json"]):
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        cli.main([*command, *options])
        assert not set("\x1b\x07\u202e") & set(terminal.getvalue())
        assert "owned" in terminal.getvalue()


def test_json_is_the_same_everywhere_and_says_what_the_model_said(
    speaks_evil: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["run", str(speaks_evil.path), "bad", "--json", *TALK])
    line = capsys.readouterr().out
    assert "\u202e" not in line
    (said,) = txport.load(speaks_evil.path).generate(
        "bad", min_new_tokens=6, max_new_tokens=6, suppress_tokens=(0, 1, 3, 4, 5, 6)
    )
    assert json.loads(line)["output"] == said.output


def test_letters_stay_letters_in_json() -> None:
    assert textio.to_json({"é": "日本\x7f"}) == '{"é": "日本\\u007f"}'


def test_people_are_told_in_one_place() -> None:
    """What goes to a terminal goes through `echo`, `print_line` or a table; messages above a bar through the bar."""
    found = [
        f"{file.name}: {line.strip()}"
        for file in (PACKAGE / "cli").rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if ("click.echo(" in line or "print(" in line or "click.secho(" in line) and "_print" not in line
    ]
    assert sorted(each.partition(":")[0] for each in found) == ["guard.py", "progress.py", "tables.py", "textio.py"], (
        found
    )


def test_a_path_that_is_no_utf_8_is_shown(tmp_path: Path) -> None:
    done = run("inspect", os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x9b"))
    assert_one_line(done, r"\udcff\udc9b", 2)


def test_an_error_that_nobody_reads_keeps_its_code(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("inspect", tmp_path / "missing", stderr=writing)
    os.close(writing)
    process.communicate(timeout=60)
    assert process.returncode == 2


@pytest.mark.parametrize(("command", "code"), [("inspect", 0), ("verify", 0), ("verify", 1)])
def test_a_reader_that_leaves_changes_no_verdict(command: str, code: int, copied: Path) -> None:
    if code:
        (copied / "samples.txt").write_text("other\n")
    ours = f'"{sys.executable}" -c "from txport.cli import main; main()" {command} "{copied}"'
    line = f'{ours} | true; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", line], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
