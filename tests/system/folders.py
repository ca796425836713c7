"""What tests of writers write, and how they look at what became of it."""

from __future__ import annotations

from pathlib import Path

from txport.system.files import require_file, staged_file, staged_folder


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones too, by path."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(out: Path, text: str = "new", *, force: bool = False) -> None:
    with staged_folder(out, force=force) as folder:
        (folder / "onnx").mkdir()
        (folder / "onnx" / "graph").write_text(text)
        (folder / "manifest").write_text(text)


def write_half(out: Path, error: BaseException) -> None:
    with staged_folder(out, force=True) as folder:
        (folder / "half").write_text("half")
        raise error


def write_file(path: Path, text: str = "new") -> None:
    require_file(path)
    with staged_file(path) as stream:
        stream.write(text)
