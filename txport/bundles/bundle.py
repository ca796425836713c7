"""A bundle: graphs, tokenizers and `txport.json`, the manifest that describes them and contains their hashes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ParamSpec, TypeVar

from txport.bundles.graphs import STANDARD, is_beside, read_outline
from txport.bundles.manifest import Manifest
from txport.bundles.metadata import contradictions
from txport.bundles.reading import read_manifest
from txport.errors import BundleError, TxportError, UnsupportedError, quoted
from txport.models.names import COMPANIONS, LARGEST_SAMPLES, MANIFEST, SAMPLES
from txport.system.documents import DocumentError, read_lines, write_json
from txport.system.files import sha256
from txport.targets.ports import GENERATE

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")

LARGE = 8 << 20  # bytes of a file that is hashed while others are read
TRIES = 3  # of reading a bundle that other processes replace
LOOPS = frozenset({"Loop", "Scan"})  # only the single graph has one: its search loop
# Operators with optional inputs; ONNX Runtime 1.31 crashes if a required input of an operator is missing.
OPTIONAL = frozenset(
    {
        "Attention",
        "DynamicQuantizeMatMul",
        "GroupQueryAttention",
        "MatMulNBits",
        "MultiHeadAttention",
        "SkipLayerNormalization",
    }
)


@dataclass(frozen=True)
class Bundle:
    """A folder on disk and its manifest.

    `measured`: the differences from PyTorch, if the bundle was exported by this process. They depend on the machine,
    and are therefore not stored in the folder. `hashing`: the problems of its large files, while a thread hashes them.
    """

    path: Path
    manifest: Manifest
    measured: Mapping[str, object] = field(default_factory=dict, compare=False)
    hashing: Future[list[str]] | None = field(default=None, compare=False)

    def file(self, role: str) -> Path:
        """Return the path of the graph with this role."""
        return self.path / self.manifest.graphs[role].file

    @contextlib.contextmanager
    def verified(self) -> Iterator[None]:
        """Run a block that reads the files, and wait until they are hashed.

        Raises `BundleError` for altered files, also in place of an error of the block, which they may have caused.
        """
        try:
            yield
        except Exception:
            self._require_unaltered()
            raise
        self._require_unaltered()

    def _require_unaltered(self) -> None:
        if self.hashing is not None:
            _refuse(self.path, self.hashing.result())

    def require_source(self, name: str, sha256: str) -> None:
        """Raise `UnsupportedError` unless the bundle was made from the checkpoint with this hash."""
        if not self.manifest.is_of(sha256):
            raise UnsupportedError(f"{self.path} was not made from this {name}: their hashes differ")

    def require_model(self, described: Mapping[str, object]) -> None:
        """Raise `BundleError` unless the manifest describes the model as its checkpoint does (`Checkpoint.described`).

        The manifest may have been edited, which the hashes of files do not detect.
        """
        for where, found, expected in self.manifest.differences(described):
            what = f"{where} {quoted(found)}, its checkpoint {quoted(expected)}"
            raise BundleError(f"{self.path / self.manifest.written_in} says {what}; export it again")

    def require_weights(self) -> None:
        """Raise `BundleError` if the bundle has no weights."""
        if self.manifest.weightless:
            fix = "they can't be run or compared; export it again without weights=False"
            raise BundleError(f"{self.path} has graphs without weights; {fix}")

    @property
    def samples(self) -> list[str]:
        """Sample inputs of the checkpoint, one per line of the file; empty if there is no such file."""
        file = self.path / SAMPLES
        try:
            return read_lines(file, LARGEST_SAMPLES) if file.exists() else []
        except DocumentError as error:
            raise BundleError(str(error)) from error

    @property
    def texts(self) -> Mapping[str, Path | str]:
        """The tokenizers and text settings, as `tokenizer_of` accepts them."""
        return self.manifest.texts_in(self.path)

    @property
    def size(self) -> int:
        """Total size in bytes of all files that the manifest lists."""
        return sum(entry["bytes"] for entry in self.manifest.files.values())


def seal(folder: Path, manifest: Manifest, written: Collection[str] | None = None) -> Bundle:
    """Write the README and the manifest of the files in `folder`, and return the bundle.

    `written`: names of the files that are other than the manifest says; None for all.
    """
    from txport.bundles.readme.page import README, readme  # many modules, which a bundle that is only run does not need

    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    page = readme(manifest, [path.relative_to(folder).as_posix() for path in found if path != folder / README])
    (folder / README).write_text(page, encoding="utf-8", newline="\n")
    paths = {path.relative_to(folder).as_posix(): path for path in sorted({*found, folder / README})}
    known = {} if written is None else {name: manifest.files.get(name) for name in paths.keys() - {*written, README}}
    files = {
        name: known.get(name) or {"sha256": sha256(path), "bytes": path.stat().st_size} for name, path in paths.items()
    }
    manifest = dataclasses.replace(manifest, files=files)
    write_json(folder / MANIFEST, manifest.to_dict())
    return Bundle(folder, manifest)


def steady(read: Callable[Arguments, Item]) -> Callable[Arguments, Item]:
    """Decorate a function of the path of a bundle: it is called again if the bundle was replaced meanwhile.

    Raises `BundleError` if this happens at each of its `TRIES`, since a result could mix two bundles.
    """
    first = next(iter(inspect.signature(read).parameters))

    @functools.wraps(read)
    def read_steadily(*arguments: Arguments.args, **options: Arguments.kwargs) -> Item:
        path = arguments[0] if arguments else options.get(first, "")
        for _ in range(TRIES):
            before = _stamp(path)
            try:
                result = read(*arguments, **options)
            except TxportError:
                if _stamp(path) == before:
                    raise
            else:
                if _stamp(path) == before:
                    return result
        raise BundleError(f"{path} was replaced {TRIES} times while it was read; try again when no process writes it")

    return read_steadily


@steady
def load_bundle(path: Path, *, wait: bool = True) -> Bundle:
    """Read a bundle and check every file against its hash; raise `BundleError` with the files that do not match.

    Without `wait`, a thread hashes large weights, and the caller must read them in a block of `Bundle.verified`, in a
    function that is `steady`. All other files are hashed before; a damaged graph could end the process.
    """
    bundle = Bundle(path, read_manifest(path))
    if wait:
        _refuse(path, damage(bundle))
        return bundle
    files = bundle.manifest.files
    large = {name for name, entry in files.items() if entry["bytes"] >= LARGE} - {*COMPANIONS}
    large -= {graph.file for graph in bundle.manifest.graphs.values()}
    _refuse(path, damage(bundle, files.keys() - large))
    return dataclasses.replace(bundle, hashing=_in_a_thread(lambda: _problems(bundle, sorted(large))))


def _refuse(path: Path, problems: Iterable[str]) -> None:
    """Raise `BundleError` if there are problems."""
    if told := "; ".join(problems):
        raise BundleError(f"{path}: {told}; export it again")


def _in_a_thread(work: Callable[[], Item]) -> Future[Item]:
    """Return the result of a function that runs in a thread, which does not keep the process from its end."""
    future = Future[Item]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised where the result is read
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _stamp(path: Any) -> tuple[int, ...]:
    """Return what identifies the manifest's file; () if there is none."""
    try:
        status = Path(path, MANIFEST).stat()
    except (OSError, ValueError, TypeError):
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def damage(bundle: Bundle, hashed: Collection[str] | None = None) -> list[str]:
    """List the problems of the files of a bundle (missing, altered, added, unsafe graphs); empty if there are none.

    `hashed`: the names of the files whose content is compared with their hash; None for all.
    """
    problems = _problems(bundle, bundle.manifest.files, hashed)
    read = [name for name in COMPANIONS if (bundle.path / name).exists()]
    added = [name for name in read if name not in bundle.manifest.files]
    problems += [f"{name} was added (the manifest has no hash for it)" for name in added]
    return problems or [problem for role in bundle.manifest.graphs for problem in _strange(bundle, role)]


def _problems(bundle: Bundle, names: Iterable[str], hashed: Collection[str] | None = None) -> list[str]:
    found = (_problem(bundle, name, is_hashed=hashed is None or name in hashed) for name in names)
    return [problem for problem in found if problem]


def _problem(bundle: Bundle, name: str, *, is_hashed: bool) -> str | None:
    path = bundle.path / name
    entry = bundle.manifest.files[name]
    try:
        if not path.is_file():
            return f"{name} is {'not a file' if path.exists() else 'missing'}"
        if path.stat().st_size != entry["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, expected {entry['bytes']}"
        is_same = not is_hashed or sha256(path) == entry["sha256"]
        return None if is_same else f"{name} was altered (its SHA-256 does not match)"
    except OSError as error:
        return f"{name} can't be read ({error.strerror})"


def _strange(bundle: Bundle, role: str) -> list[str]:
    """List the problems of a graph before a runtime loads it, such as unlisted weight files and loops."""
    file = bundle.manifest.graphs[role].file
    try:
        outline = read_outline(bundle.path / file)
    except BundleError as error:
        return [str(error)]
    folder = PurePosixPath(file).parent
    files = bundle.manifest.files
    places = {name: (folder / name).as_posix() for name in outline.files}
    if bundle.manifest.weightless:  # missing weight files are never read
        places = {name: place for name, place in places.items() if place in files or not is_beside(name)}
    strange = sorted(name for name, place in places.items() if place not in files or place == file)
    allowed = {"Loop"} if role == GENERATE else set()
    loops = sorted(LOOPS & outline.names - allowed)
    opsets = sorted(version for domain, version in outline.opsets if domain in STANDARD)
    opset = bundle.manifest.opset
    return [
        *(f"{file} has opset {each}, the manifest says {opset}" for each in opsets if each != opset),
        *(f"{file} reads {quoted(name)}, which is no file of weights that the manifest lists" for name in strange),
        *(f"{file} leaves out an input of {name}, which needs them all" for name in sorted(outline.gaps - OPTIONAL)),
        *(f"{file} has the operator {name}, which may not terminate" for name in loops),
        *([f"{file} has {outline.functions} local functions, and txport writes none"] if outline.functions else []),
        *(f"{file} says {each}" for each in contradictions(outline.metadata, bundle.manifest, role)),
    ]
