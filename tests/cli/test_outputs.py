"""Where commands write: looked at before any work, written through links, and never over what was not meant."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import txport
from txport import cli
from txport.api import locate, release
from txport.api import model as api
from txport.bench import compare
from txport.bundles import bundle as bundles
from txport.bundles.bundle import Bundle, load_bundle
from txport.cli.outputs import Command, InputPath, OutputFile, OutputFolder, require_outputs
from txport.errors import OutputError
from txport.system.files import sha256

Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """A command has a handler of its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must end before any work; -> what it says."""

    def work(*arguments: object, **options: object) -> None:
        pytest.fail("it has begun to work")

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (end.value.code, out, err.count("\n")) == (2, "", 1)
        return err

    for module, name in ((locate, "find_bundle"), (api, "load"), (release, "matrix"), (compare, "read_report")):
        monkeypatch.setattr(module, name, work)
    return run


PARITY = ("parity", "g2p-en")
PLACES = [
    ("{tmp}/missing/out", "{tmp}/missing/out can't be written: No such file or directory; choose another place"),
    ("{tmp}/folder", "{tmp}/folder is a folder, expected a file to write"),
    ("{tmp}/file/out", "{tmp}/file/out can't be written: Not a directory; choose another place"),
]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("run", "g2p-en", "bad"), "--output"),
        *((PARITY, option) for option in ("--report", "--junit", "--markdown")),
        *((("matrix", "g2p-en"), option) for option in ("--report", "--markdown", "--html")),
        (("bench", "g2p-en", "--runtime", "ort"), "--report"),
    ],
)
@pytest.mark.parametrize(("place", "message"), PLACES)
def test_every_place_is_looked_at_before_any_work(
    refused: Refused, tmp_path: Path, command: tuple[str, ...], option: str, place: str, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("precious")
    assert refused(*command, option, place.format(tmp=tmp_path)) == f"txport: {message.format(tmp=tmp_path)}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_to_keep_is_looked_at_before_any_work(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert "out exists; --force" not in refused("matrix", "g2p-en", "--keep", tmp_path / "file")
    assert f"{tmp_path} exists" in refused("matrix", "g2p-en", "--keep", tmp_path)
    assert "can't be written: Not a directory" in refused("matrix", "g2p-en", "--keep", tmp_path / "file" / "out")


@pytest.mark.parametrize(("one", "other"), [("r.json", "r.json"), ("r.json", "./r.json"), ("r.json", "link")])
def test_two_outputs_to_one_file_are_refused(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("r.json")
    said = refused(*PARITY, "--report", one, "--junit", other)
    assert said == "txport: --report and --junit name the same place, r.json; give each its own\n"
    assert "--report and --keep name the same place" in refused("matrix", "g2p-en", "--report", one, "--keep", one)


PARAMETERS = [(name, each) for name, command in cli.cli.commands.items() for each in command.params]
WRITING = [(name, each.opts[-1]) for name, each in PARAMETERS if isinstance(each.type, OutputFile)]


def test_each_parameter_says_whether_it_is_read_or_written() -> None:
    """The guard of `Command` needs no list of options: it looks at the types of the parameters."""
    paths = [(name, each.name, each.type) for name, each in PARAMETERS if isinstance(each.type, click.Path)]
    assert [each for each in paths if not isinstance(each[2], InputPath | OutputFile | OutputFolder)] == []
    assert {name for name, _ in WRITING} == {"import", "run", "parity", "matrix", "bench", "inspect", "verify"}
    assert all(isinstance(cli.cli.commands[name], Command) for name, _ in WRITING)


@pytest.mark.parametrize(("command", "option"), WRITING)
def test_no_option_replaces_a_file_of_a_model(
    refused: Refused, bundle: Bundle, checkpoint: Path, tmp_path: Path, command: str, option: str
) -> None:
    """Neither of the model that is named, by any name of the file, nor of one that the command does not read."""
    graph = next(iter(bundle.manifest.files))
    weights = checkpoint / "model.safetensors"
    (tmp_path / "link").symlink_to(bundle.path / "txport.json")
    (tmp_path / "hard").hardlink_to(weights)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pytorch_model.bin").write_text("precious")
    (tmp_path / "other" / "README.md").write_text("card")
    for model, target in (
        (bundle.path, bundle.path / graph),
        (bundle.path, tmp_path / "link"),
        (bundle.path, weights),
        (bundle.path, tmp_path / "other" / "pytorch_model.bin"),
        (bundle.path, tmp_path / "other" / "README.md"),
        (checkpoint, tmp_path / "hard"),
    ):
        before = target.read_bytes()
        said = refused(command, model, option, target)
        assert said.startswith(f"txport: {target} is a file of ")
        assert said.endswith(f", and {option} would replace it; choose another place\n")
        assert target.read_bytes() == before


def test_no_output_replaces_what_the_command_reads(refused: Refused, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.write_text("bad\tB\n")
    code = tmp_path / "model.py"
    code.write_text("Net = None")
    for what, arguments in {
        "--quality": (*PARITY, "--quality", texts, "--markdown", texts),
        "--baseline": (*PARITY, "--baseline", texts, "--junit", texts),
        "--compare": ("bench", "g2p-en", "--compare", texts, "--report", texts),
        "--input": ("run", "g2p-en", "--input", texts, "--output", texts),
        "TEXT": ("run", "g2p-en", texts, "--output", texts),
        "--checkpoint": (*PARITY, "--checkpoint", f"{code}:Net", "--report", code),
    }.items():
        said = refused(*arguments)
        option = arguments[-2]
        assert (
            said
            == f"txport: {arguments[-1]} is what {what} reads, and {option} would replace it; choose another place\n"
        )


def test_a_report_in_the_folder_of_a_bundle_is_replaced(copied: Path, tmp_path: Path) -> None:
    report = copied / "report.html"
    for _ in range(2):
        cli.main(["inspect", str(copied), "--html", str(report)])
    assert load_bundle(copied).manifest
    assert report.read_text().startswith("<!")


def test_files_may_lie_in_the_folder_that_is_kept(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    require_outputs({"--report": keep / "matrix.json"}, {"--keep": keep})
    with pytest.raises(OutputError, match=r"deeper/matrix\.json can't be written"):
        require_outputs({"--report": keep / "deeper" / "matrix.json"}, {"--keep": keep})
    assert list(tmp_path.iterdir()) == []


def test_outputs_may_share_a_stream() -> None:
    require_outputs({"--report": Path(os.devnull), "--junit": Path(os.devnull)})


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="this system does not name open files")
def test_standard_output_by_its_name_is_standard_output(bundle: Bundle) -> None:
    command = [sys.executable, "-c", "from txport.cli import main; main()", "run", str(bundle.path), "bad"]
    done = [
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ((), ("--output", "/dev/stdout"))
    ]
    assert done[0] == done[1]
    assert done[0].strip()


# ------------------------------------------------------------------------------------------------ bundles


def test_a_bundle_that_a_killed_export_had_moved_aside_is_found(copied: Path) -> None:
    """Where two folders can't be exchanged, it is out of its place for a moment."""
    stage = copied.with_name(".bundle.partial-0123456789abcdef")
    stage.mkdir()
    copied.rename(stage / "old")
    said: list[str] = []
    assert locate.find_bundle(str(copied), progress=said.append).path == copied
    assert said[0] == f"put back {copied}, moved aside by a command that was killed"
    assert txport.load(copied).generate("bad")


def test_what_killed_exports_left_in_the_cache_is_removed(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(name: str, out: Path, **options: object) -> Bundle:
        assert list(out.parent.iterdir()) == []
        shutil.copytree(bundle.path, out)
        return load_bundle(out)

    key = locate._key("preset:tiny", "portable", "fp32")
    left = tmp_path / "txport" / "bundles" / f".{key}.partial-0123456789abcdef"
    (left / "onnx").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(locate, "export", export)
    assert locate.find_bundle("preset:tiny").manifest == bundle.manifest


CACHED = """
    import shutil, sys, time
    from pathlib import Path
    from txport.api import locate
    from txport.bundles.bundle import load_bundle
    def export(name, out, **options):
        print("export", flush=True)
        time.sleep(0.3)
        shutil.copytree(sys.argv[1], out)
        return load_bundle(out)
    locate.export = export
    locate.find_bundle("g2p-en")  # whose name needs no PyTorch
"""


def test_of_several_processes_one_exports_to_the_cache_and_the_others_wait(bundle: Bundle, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(CACHED), str(bundle.path)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sorted(said) == ["", "", "export\n"]


def test_a_cache_that_can_t_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="can't be written: Not a directory; export to a folder of your own"):
        locate.find_bundle("preset:tiny")


@pytest.mark.parametrize("out", ["{store}", "{link}"])
def test_an_export_spares_what_the_checkpoint_is_made_of(checkpoint: Path, tmp_path: Path, out: str) -> None:
    """Its weights may be a link into a folder that looks like a bundle."""
    store = tmp_path / "store"
    source = tmp_path / "source"
    link = tmp_path / "link"
    shutil.copytree(checkpoint, source)
    store.mkdir()
    (store / "txport.json").touch()
    (source / "model.safetensors").rename(store / "weights")
    (source / "model.safetensors").symlink_to(store / "weights")
    link.symlink_to(store)
    with pytest.raises(OutputError, match="holds the checkpoint itself; choose another place"):
        txport.export(source, out.format(store=store, link=link), force=True)
    assert (store / "weights").is_file()


def test_an_export_keeps_the_files_of_others_in_out(copied: Path, checkpoint: Path) -> None:
    """A bundle may lie in a repository; what the old bundle had and the new one has not goes."""
    kept = {"notes.txt": "mine", ".git/objects/ab/cd": "history", "onnx/README": "too", "link": "dangling"}
    for name, content in kept.items():
        path = copied / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "link":
            path.symlink_to(content)
        else:
            path.write_text(content)
    (copied / "notes.txt").chmod(0o400)
    (copied / ".git").chmod(0o700)
    before = set(load_bundle(copied).manifest.files)
    made = txport.export(checkpoint, copied, target="cpu", force=True)
    assert before - set(made.manifest.files)
    files = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file() or path.is_symlink()}
    assert files == {"txport.json", *made.manifest.files, *kept}
    assert (copied / "notes.txt").read_text() == "mine"
    assert [(copied / name).stat().st_mode & 0o777 for name in ("notes.txt", ".git")] == [0o400, 0o700]
    assert (copied / "link").readlink() == Path("dangling")
    assert load_bundle(copied).manifest == made.manifest


def test_an_export_over_a_damaged_bundle_makes_a_whole_one(copied: Path, checkpoint: Path) -> None:
    (copied / "txport.json").write_text("{")
    (copied / "samples.txt").write_text("bad")
    txport.export(checkpoint, copied, target="cpu", force=True)
    assert load_bundle(copied).manifest.target == "cpu"


@pytest.mark.parametrize("step", ["read_manifest", "damage"])
def test_a_bundle_that_is_replaced_while_it_is_read_is_read_again(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """An export replaces it after the step; a reader gets all of the old one or all of the new one."""
    other = tmp_path / "other"
    shutil.copytree(copied, other)
    (other / "README.md").write_text("new")
    manifest = json.loads((other / "txport.json").read_text())
    manifest["files"]["README.md"] = {"sha256": sha256(other / "README.md"), "bytes": 3}
    manifest["checkpoint"]["name"] = "new"
    (other / "txport.json").write_text(json.dumps(manifest))
    original = getattr(bundles, step)

    def replace(given: object) -> object:
        result = original(given)
        if other.exists():
            copied.rename(tmp_path / "aside")
            other.rename(copied)
        return result

    monkeypatch.setattr(bundles, step, replace)
    assert load_bundle(copied).manifest.checkpoint["name"] == "new"
