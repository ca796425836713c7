"""Completion by the shell: the words that it offers, as each shell asks for them, and in a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import ENVIRONMENT, SCRIPT, run
from txport.checkpoints.folder import shipped
from txport.cli import cli, completion
from txport.models import architecture

Ask = Callable[[str, str], list[str]]
PRESETS = [*architecture.presets()]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working folder with a bundle of the user's."""
    (tmp_path / "german").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "file").touch()
    return tmp_path


@pytest.fixture
def ask(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a shell gets for a command line that ends at the cursor: type and value of each."""
    monkeypatch.chdir(here)

    def ask(shell: str, line: str) -> list[str]:
        for name, value in asked_by(shell, line).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            completion.answer(cli)
        out, err = capsys.readouterr()
        assert (end.value.code, err) == (0, "")
        lines = out.splitlines()
        if shell == "zsh":
            return [f"{kind},{value}" for kind, value in zip(lines[::3], lines[1::3], strict=True)]
        return [each.partition("\t")[0] for each in lines]

    return ask


def asked_by(shell: str, line: str) -> dict[str, str]:
    """How a shell asks, by its environment."""
    words = line.split(" ")
    if shell == "bash":  # breaks words at a colon
        words = line.replace(":", " : ").strip().split(" ") + ([""] if line.endswith(" ") else [])
    place = words[-1] if shell == "fish" else str(len(words) - 1)
    return {"_TXPORT_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": place}


SHELLS = ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_offered_what_fits(shell: str, ask: Ask) -> None:
    assert "plain,export" in ask(shell, "txport ex")
    assert "plain,--precision" in ask(shell, "txport export --pre")
    assert ask(shell, "txport run g") == ["plain,g2p-en", "plain,german"]
    assert ask(shell, "txport run ") == [f"plain,{name}" for name in [*shipped(), "preset:", "german"]]
    assert ask(shell, "txport run g2p-en --provider c") == ["plain,cpu", "plain,cuda", "plain,coreml"]
    assert ask(shell, "txport matrix g2p-en --provider dm") == ["plain,dml"]
    assert ask(shell, "txport parity german --checkpoint g2") == ["plain,g2p-en"]
    assert ask(shell, "txport export g2p-en ") == ["dir,"]
    assert ask(shell, "txport verify ./ge") == ["dir,./ge"]
    assert ask(shell, "txport run g2p-en --input fi") == ["file,fi"]
    assert ask(shell, "txport run preset:tiny --runtime t") == ["plain,torch", "plain,tract"]


@pytest.mark.parametrize("shell", SHELLS)
def test_presets_are_completed_where_the_shell_breaks_words(shell: str, ask: Ask) -> None:
    start, typed = ("", "") if shell == "bash" else ("preset:", "b")
    offered = [f"plain,{start}{name}" for name in PRESETS if name.startswith(typed)]
    assert offered == ask(shell, f"txport inspect preset:{typed}")
    assert {f"plain,{start}base", f"plain,{start}big"} <= set(offered)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_its_script(shell: str) -> None:
    done = run(env={**ENVIRONMENT, "_TXPORT_COMPLETE": f"{shell}_source"})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{shell}_complete" in done.stdout


BASH = """
eval "$(_TXPORT_COMPLETE=bash_source txport)"
complete -p txport
offer() {
    COMPREPLY=()
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    _txport_completion txport 2> /dev/null
    echo "${COMPREPLY[@]}"
}
offer txport run g2p
offer txport run preset : ti
offer txport export --target c
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_in_a_real_bash(here: Path) -> None:
    environment = {**ENVIRONMENT, "PATH": f"{SCRIPT.parent}{os.pathsep}{ENVIRONMENT['PATH']}"}
    command = ["bash", "--norc", "-c", BASH]
    done = subprocess.run(command, env=environment, cwd=here, capture_output=True, text=True)
    assert done.stderr == ""
    registered, *offered = done.stdout.splitlines()
    assert registered == "complete -o nosort -F _txport_completion txport"
    assert offered == ["g2p-en", "tiny", "cpu cuda"]
