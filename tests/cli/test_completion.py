"""Completion by the shell: the words that it offers, as each shell asks for them, and in a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import ENVIRONMENT, SCRIPT, run
from txport.models import architecture
from txport.models.names import shipped
from txport.runtimes import PROVIDERS

PRESETS = [*architecture.presets()]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working folder with a bundle of the user's."""
    (tmp_path / "german").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "file").touch()
    return tmp_path


def ask(shell: str, line: str, here: Path) -> list[str]:
    """What a shell gets for a command line that ends at the cursor: type and value of each."""
    words = line.split(" ")
    if shell == "bash":  # breaks words at a colon
        words = line.replace(":", " : ").strip().split(" ") + ([""] if line.endswith(" ") else [])
    place = words[-1] if shell == "fish" else str(len(words) - 1)
    asked = {"_TXPORT_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": place}
    done = run(env={**ENVIRONMENT, **asked}, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    if shell == "zsh":
        return [f"{kind},{value}" for kind, value in zip(lines[::3], lines[1::3], strict=True)]
    return [each.partition("\t")[0] for each in lines]


SHELLS = ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_offered_what_fits(shell: str, here: Path) -> None:
    assert "plain,export" in ask(shell, "txport ex", here)
    assert "plain,--precision" in ask(shell, "txport export --pre", here)
    assert ask(shell, "txport run g", here) == ["plain,g2p-en", "plain,german"]
    assert ask(shell, "txport run ", here) == [f"plain,{name}" for name in [*shipped(), "preset:", "german"]]
    assert ask(shell, "txport run g2p-en --provider c", here) == ["plain,cpu", "plain,cuda", "plain,coreml"]
    assert ask(shell, "txport matrix g2p-en --provider dm", here) == ["plain,dml"]
    assert ask(shell, "txport parity german --checkpoint g2", here) == ["plain,g2p-en"]
    assert ask(shell, "txport export g2p-en ", here) == ["dir,"]
    assert ask(shell, "txport verify ./ge", here) == ["dir,./ge"]
    assert ask(shell, "txport run g2p-en --input fi", here) == ["file,fi"]
    assert ask(shell, "txport run preset:tiny --runtime t", here) == ["plain,torch", "plain,tract"]


@pytest.mark.parametrize("shell", SHELLS)
def test_presets_are_completed_where_the_shell_breaks_words(shell: str, here: Path) -> None:
    start, typed = ("", "") if shell == "bash" else ("preset:", "b")
    offered = [f"plain,{start}{name}" for name in PRESETS if name.startswith(typed)]
    assert offered == ask(shell, f"txport inspect preset:{typed}", here)
    assert {f"plain,{start}base", f"plain,{start}big"} <= set(offered)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_its_script(shell: str) -> None:
    done = run(env={**ENVIRONMENT, "_TXPORT_COMPLETE": f"{shell}_source"})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{shell}_complete" in done.stdout


def test_no_other_instruction_runs_a_command() -> None:
    done = run("--version", env={**ENVIRONMENT, "_TXPORT_COMPLETE": "nonsense"})
    assert (done.returncode, done.stdout) == (1, "")


def test_what_is_offered_is_what_there_is() -> None:
    assert {"cpu", "cuda", "coreml"} <= set(PROVIDERS)


BASH = """
eval "$(_TXPORT_COMPLETE=bash_source txport)"
complete -p txport
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_txport_completion txport 2> /dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_in_a_real_bash(here: Path) -> None:
    environment = {**ENVIRONMENT, "PATH": f"{SCRIPT.parent}{os.pathsep}{ENVIRONMENT['PATH']}"}

    def offered(words: str) -> list[str]:
        script = BASH.format(words=words)
        done = subprocess.run(
            ["bash", "--norc", "-c", script], env=environment, cwd=here, capture_output=True, text=True
        )
        assert done.stderr == ""
        registered, *values = done.stdout.splitlines()
        assert registered == "complete -o nosort -F _txport_completion txport"
        return values

    assert offered("txport run g2p") == ["g2p-en"]
    assert offered("txport run preset : ti") == ["tiny"]
    assert offered("txport export --target c") == ["cpu", "cuda"]
