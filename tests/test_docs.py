"""The documents are true: the examples in Python run, and docs/cli.md is the help that the commands print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from docs.addresses import absolute, named
from docs.cli import PAGE, render
from docs.picture import PICTURE
from docs.picture import render as picture
from tests.called import Cli
from txport import errors
from txport.bundles.bundle import Bundle
from txport.checkpoints.family import all_families
from txport.cli import cli
from txport.errors import TxportError
from txport.models.names import MANIFEST

ROOT = Path(__file__).parent.parent


def require_options(name: str, arguments: list[str]) -> None:
    """A command has these options; it is parsed below `txport`, since click keeps the flags of its first help."""
    with click.Context(cli, **cli.context_settings) as top:
        cli.commands[name].make_context(name, arguments, parent=top)


@pytest.mark.parametrize("page", ["README.md", "docs/running.md"])
def test_the_example_in_python_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})  # noqa: S102 - our own page
    assert re.search(r"transformer -> ([A-Z]{1,2} )+[A-Z]{1,2} \(score -0\.", capsys.readouterr().out)
    assert (tmp_path / "bundle" / "txport.json").is_file()


def test_the_examples_of_serving_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads, loop = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serving.md").read_text("utf-8"), re.DOTALL)
    exec(threads, {})  # noqa: S102 - our own page
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "T R AE N S F AO R M ER"
    assert lines[-2] == "P R AH N AH N S IY EY SH AH N"
    exec(loop, {})  # noqa: S102
    assert capsys.readouterr().out.splitlines()[-1] == "AH T EH N SH AH N"


def test_the_commands_on_the_page_about_bulk_work_can_run() -> None:
    page = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8")
    commands = [shlex.split(line)[1:] for line in page.splitlines() if line.startswith("txport ")]
    assert {name for name, *_ in commands} >= {"bulk"}
    for name, *arguments in commands:
        require_options(name, arguments)


def test_the_errors_on_the_page_about_errors_are_those_that_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Cli
) -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    kinds = [name for name, each in vars(errors).items() if isinstance(each, type) and each is not TxportError]
    assert [name for name in kinds if f"`{name}`" not in page] == []
    for folder in ("empty", "broken"):
        (tmp_path / folder).mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"architecture": "transformer"}', encoding="utf-8")
    (tmp_path / "notes.txt").write_text("notes", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^\$ txport (.+)\n(txport: .+[^.])$", page, re.MULTILINE)  # one that is cut ends in dots
    assert len(shown) > 5
    for command, message in shown:
        assert call(*shlex.split(command)) == (2, "", f"{message}\n")


def test_the_picture_is_what_its_script_draws() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run `python -m docs.picture`"


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert {path.name for path in ROOT.glob("docs/*.md")} - {"index.md"} <= set(re.findall(r"\]\(([^)]+)\)", index))


def test_the_page_of_a_bundle_names_every_file(bundle: Bundle) -> None:
    table = (ROOT / "docs" / "bundle.md").read_text(encoding="utf-8").split("\n\n")[1]
    assert {MANIFEST, *bundle.manifest.files} == set(re.findall(r"`([^`]+\.[a-z]+)`", table))


def test_the_architecture_on_the_page_about_architectures_is_whole(tmp_path: Path) -> None:
    """Beside the others it exports its preset to both targets, proven, and draws variants; nothing else knows it."""
    page = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    (tmp_path / "my.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), encoding="utf-8")
    code = """
import sys
import numpy as np
import txport
from txport.models import architecture, architectures

architectures.__path__.append(sys.argv[1])
for target in ("portable", "cpu"):
    bundle = txport.export("preset:my-tiny", f"{sys.argv[1]}/{target}", target=target)
    print(bundle.manifest.architecture, bundle.manifest.parity["verdict"])
for seed in range(20):
    architecture.find("my").draw(np.random.default_rng(seed))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["my pass", "my pass"]


def test_the_page_of_the_command_line_is_what_the_commands_print() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m docs.cli`"


PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]


@pytest.mark.parametrize(
    "page", [*PAGES, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_sizes_on_the_page_about_trust_are_those_of_the_code() -> None:
    from txport.bundles import reading
    from txport.models import config, names
    from txport.system import arrays, documents
    from txport.text import library as tokenizer

    limits = {
        "txport.json": reading.LARGEST,
        "golden.npz": arrays.LARGEST,
        "tokenizer.json": tokenizer.LARGEST,
        "config.json": config.LARGEST_FILE,
        "samples.txt": names.LARGEST_SAMPLES,
        "reports": documents.LARGEST,
    }
    text = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    for name, limit in limits.items():
        row = next(line for line in text.splitlines() if line.startswith((f"| `{name}`", f"| {name} ")))
        assert row.endswith(f"| {limit >> 20} MB |"), name


def test_the_workflow_on_the_page_about_parity_can_run() -> None:
    """It is YAML as the parser reads it, and each of its txport commands has only options that exist."""
    page = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    workflow = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert workflow is not None
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load(workflow[1])["jobs"]["parity"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if "run" in step]
    commands += [shlex.split(line) for line in page.splitlines() if line.startswith("txport ")]
    ours = [command for command in commands if command[0] == "txport"]
    assert {command[1] for command in ours} == {"export", "parity"}
    for _, name, *arguments in ours:
        require_options(name, arguments)
    written = {path.strip() for step in steps for path in step.get("with", {}).get("path", "").split()}
    assert written == {"baseline.json", "parity.json", "parity.xml", "parity.md"}


FAMILIES = sorted((ROOT / "docs" / "families").glob("*.md"))


@pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.stem)
def test_the_commands_on_the_page_of_a_family_can_run(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("txport ")]
    assert {name for name, *_ in commands} >= {"export", "run", "parity"}
    for name, *arguments in commands:
        require_options(name, arguments)


def test_every_family_has_a_page() -> None:
    lines = (ROOT / "docs" / "hugging-face.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    linked = {kind: row for row in rows if "](families/" in row for kind in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert set(all_families()) - linked.keys() == set()
    table = "".join(linked.values())
    assert [page.name for page in FAMILIES if f"(families/{page.name})" not in table] == []


def test_no_page_waits_for_a_figure() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("txport/models/*/README.md")]
    assert [page.name for page in pages if "@@" in page.read_text(encoding="utf-8")] == []


def test_the_page_about_own_checkpoints_can_be_followed(tmp_path: Path) -> None:
    """Its commands have only options that exist, its file is read, and its table names every rule."""
    from txport.checkpoints.sources.rules import OPERATIONS
    from txport.checkpoints.sources.source import read_source
    from txport.models.names import RULES

    page = (ROOT / "docs" / "own-checkpoint.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("txport ")]
    assert {command[1] for command in commands} == {"import", "export"}
    for _, name, *arguments in commands:
        require_options(name, arguments)
    question, file = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / RULES).write_text(file, encoding="utf-8")
    (tmp_path / "step-90000.pt").touch()
    source = read_source(tmp_path)
    assert (source.config.to_dict()["heads"], len(source.lines)) == (4, 4)
    (tmp_path / RULES).write_text(file.replace("heads = 4\n", question), encoding="utf-8")
    with pytest.raises(ValueError, match="answer its questions first: line 8: which number"):
        read_source(tmp_path)
    assert set(re.findall(r"^\| `(\w+) = ", page, re.MULTILINE)) == set(OPERATIONS)


def test_a_release_shows_its_description_outside_the_repository() -> None:
    url = "https://example.org/some/txport"
    page = absolute((ROOT / "README.md").read_text(encoding="utf-8"), url, "v1.2.3")
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page)
    files = [link.partition(f"{url}/{'raw' if shown else 'blob'}/v1.2.3/")[2] for shown, link in links if url in link]
    assert all(link.startswith("https://") for _, link in links)
    assert len(files) > 10
    assert all((ROOT / file.partition("#")[0]).exists() for file in files)
    project = tomllib.loads(named((ROOT / "pyproject.toml").read_text(encoding="utf-8"), url))["project"]
    assert project["urls"]["Source"] == url
    assert set(project["optional-dependencies"]) > {"export", "serve"}
