"""Find the bundle of a path or a name; included checkpoints are exported to the user's cache once."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from txport.api.folders import find_origin
from txport.api.release import export
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.foreign.files import recognises
from txport.bundles.foreign.manifest import ForeignManifest
from txport.checkpoints.folder import SHIPPED, digest, graphs_alone, is_shipped, preset_name, shipped
from txport.errors import BundleError, OutputError, UnsupportedError
from txport.models.names import INDEX, MANIFEST, WEIGHTS
from txport.system.paths import require_possible, require_utf8, resolve, told
from txport.system.progress import Progress, logged
from txport.system.stages import locked, recover, to_its_end
from txport.version import __version__

CODE = (".py", ".md", ".txt")  # suffixes of the files that decide what is written
EXPORTING = (
    "audio",
    "bundles",
    "checkpoints",
    "exporters",
    "models",
    "proof",
    "targets",
    "text",
)  # rooms that make a bundle


def find_bundle(
    name: str,
    *,
    precision: str | None = None,
    variant: str | None = None,
    target: str = "portable",
    wait: bool = True,
    progress: Progress = logged,
) -> Bundle:
    """Return a bundle by path, or by the name of an included checkpoint or of a preset.

    `precision` and `target` are those of the export for a name (default: portable fp32); an existing bundle must have
    this precision. `variant` selects the graphs of a folder that was exported by other tools. Without `wait`, the files
    of an existing bundle may still be hashed (`load_bundle`). Raises `BundleError` if there is no bundle, or its files
    differ from its manifest, `UnsupportedError` for another precision or a variant of a txport bundle.
    """
    if is_on_demand(name):
        require_no_variant(name, variant)
        return _from_cache(name, target, precision or "fp32", progress)
    bundle = open_bundle(_folder(name, progress), variant, wait=wait)
    if precision not in (None, bundle.manifest.precision):
        raise UnsupportedError(f"{name} was exported in {bundle.manifest.precision}; export it again for {precision}")
    return bundle


def open_bundle(path: Path, variant: str | None = None, *, wait: bool = True) -> Bundle:
    """Open a folder: a txport bundle, or a `variant` of the graphs that were exported by other tools.

    Without `wait`, the files of a bundle may still be hashed (`load_bundle`).
    """
    if recognises(path):
        from txport.bundles.foreign.read import read_foreign  # many modules, which a txport bundle does not need

        return read_foreign(path, variant)
    require_no_variant(str(path), variant)
    return load_bundle(path, wait=wait)


def require_no_variant(name: str, variant: str | None) -> None:
    """Raise `UnsupportedError` for a variant of a txport bundle."""
    if variant is not None:
        raise UnsupportedError(f"a variant is for folders that others exported; {name} is a bundle of one precision")


def find_path(name: str, *, progress: Progress = logged) -> Path:
    """Return the path of the bundle that `find_bundle` finds; a bundle given by path is not verified."""
    return find_bundle(name, progress=progress).path if is_on_demand(name) else _folder(name, progress)


def is_on_demand(name: str) -> bool:
    """Return True for the name of a preset, or of an included checkpoint unless a path of this name exists.

    Raises `BundleError` for text that is no path.
    """
    require_possible(name, BundleError)
    return bool(preset_name(name)) or (is_shipped(name) and not Path(name).exists())


def is_checkpoint(name: str) -> bool:
    """Return True for the path of a folder that is no bundle and has no graphs: a checkpoint, if anything."""
    path = Path(name)
    has_graphs = recognises(path) or (path / MANIFEST).exists() or bool(graphs_alone(path))
    return not is_on_demand(name) and path.is_dir() and not has_graphs


def _folder(name: str, progress: Progress) -> Path:
    path = Path(name)
    require_utf8(path, BundleError)
    if not path.exists():
        recover(resolve(path), progress)
    if recognises(path):
        return path
    if any((path / file).is_file() for file in (WEIGHTS, INDEX)) and not (path / MANIFEST).exists():
        raise BundleError(f"{name} is a checkpoint, not a bundle; `txport export {name} OUT` makes one")
    if graphs := graphs_alone(path):
        raise BundleError(f"{name} {graphs}")
    if not path.is_dir():
        known = ", ".join(shipped())
        raise BundleError(f"there is no bundle {name}; give the folder that `txport export` wrote, or one of: {known}")
    return path


def checkpoint_of(bundle: Bundle, command: str = "") -> str:
    """Return the checkpoint of a bundle: an included one, a preset, or the folder that it was exported from.

    Raises `UnsupportedError` if that folder is not where it was, or its files have changed; `command` is the command
    line that the message completes.
    """
    name = bundle.manifest.checkpoint["name"]
    if isinstance(bundle.manifest, ForeignManifest):
        raise UnsupportedError(f"{bundle.path} does not say what it was exported from; name it with checkpoint=FOLDER")
    if name in shipped() or preset_name(name):
        return name
    if (origin := find_origin(bundle)) is not None:
        return origin
    what = f"{bundle.path} was made from a checkpoint of yours, {name}, which is not where it was or has changed"
    fix = f"`{command} --checkpoint FOLDER` names it" if command else "name it with checkpoint=FOLDER"
    raise UnsupportedError(f"{what}; {fix}")


def _from_cache(name: str, target: str, precision: str, progress: Progress) -> Bundle:
    import platformdirs

    path = platformdirs.user_cache_path("txport") / "bundles" / _key(name, target, precision)
    recover(path, progress)
    with contextlib.suppress(BundleError):
        return load_bundle(path)
    with _alone(path.parent, progress):
        try:
            return load_bundle(path)  # another process has exported it meanwhile
        except BundleError:
            progress(f"exporting {name} to {path} (once; some seconds)")
            to_its_end(partial(shutil.rmtree, path, ignore_errors=True))  # a damaged bundle, if any
        try:
            return export(name, path, target=target, precision=precision)
        except OutputError:
            if path.is_dir():  # without locks, another process was faster
                return load_bundle(path)
            raise


@contextlib.contextmanager
def _alone(folder: Path, progress: Progress) -> Iterator[None]:
    """Create a folder if it is missing, and lock it: other processes wait until this block ends."""
    with contextlib.ExitStack() as stack:
        with told(folder, "export to a folder of your own"):
            folder.mkdir(parents=True, exist_ok=True)
            place = resolve(folder)
            with locked(place, without=True) as is_free:
                if not is_free:
                    progress("waiting for another process that exports to the cache")
            stack.enter_context(locked(place, wait=True, without=True))
        yield


def _key(name: str, target: str, precision: str) -> str:
    """Return a folder name that depends on the checkpoint and on the code that exports it."""
    code = hashlib.sha256()
    for room in EXPORTING:
        for file in sorted((SHIPPED.parent / room).rglob("*.*")):
            code.update(file.read_bytes() if file.suffix in CODE else b"")
    return f"{name.replace(':', '-')}-{target}-{precision}-{__version__}-{digest(name)[:8]}-{code.hexdigest()[:8]}"
