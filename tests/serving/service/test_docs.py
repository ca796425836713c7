"""The examples on the page about the service run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import soundfile

import txport
from tests.audio.noise import RATE, noise
from tests.serving.service.served import running
from txport.serving import app

PAGE = (Path(__file__).parents[3] / "docs" / "service.md").read_text(encoding="utf-8")
NAMES = {"g2p-en": "spell", "chat": "chat", "embed": "embed", "rerank": "rerank", "speech": "hear", "squad": "answer"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_and_the_program_on_the_page_run(
    models: dict[str, txport.Model],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    soundfile.write(tmp_path / "talk.wav", noise("short"), RATE)
    monkeypatch.chdir(tmp_path)
    commands = [line for line in PAGE.splitlines() if line.startswith("curl ")]
    assert len(commands) == 7
    with running(app({name: models[own] for name, own in NAMES.items()})) as url:
        for line in commands:
            spelled = line.replace("localhost:8000", url).replace('"hello", "onnx"', '"bad", "chief"')  # tiny's letters
            command = [*shlex.split(spelled), "-sS", "--fail-with-body", "--noproxy", "*"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.startswith("data: ") or json.loads(done.stdout)
        program = next(each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "openai" in each)
        exec(program.replace("http://localhost:8000", url), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines()[-1].endswith(str(models["embed"].facts.width))


def test_the_program_with_an_application_of_its_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, txport.Model]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(txport, "export", lambda *_, **__: None)  # as other pages do it
    monkeypatch.setattr(txport, "load", lambda *_, **__: models["spell"])
    program = next(each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "application" in each)
    found: dict[str, object] = {}
    exec(program, found)  # noqa: S102 - our own page
    assert callable(found["application"])
