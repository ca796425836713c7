"""From what a user names to a bundle on disk; what ships as a checkpoint is exported into the user's cache once."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.foreign.files import recognises
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.foreign.read import read_foreign
from txport.errors import BundleError, OutputError, UnsupportedError
from txport.models.names import INDEX, MANIFEST, SHIPPED, WEIGHTS, digest, is_shipped, preset_name, shipped
from txport.release import Progress, export, silent
from txport.system.locks import locked
from txport.system.places import resolve
from txport.system.stages import clean, remove, restore, told
from txport.version import __version__


def find_bundle(
    name: str, *, precision: str | None = None, variant: str | None = None, progress: Progress = silent
) -> Bundle:
    """A bundle by path, or by the name of a checkpoint that ships or of a preset.

    `precision` chooses what is exported for a name; a bundle that exists has the one it was made with. `variant` is for
    a folder that others exported: which of its graphs. Raises `BundleError` if there is none, or its files are not what
    its manifest says.
    """
    if is_on_demand(name):
        require_no_variant(name, variant)
        return _from_cache(name, precision or "fp32", progress)
    bundle = open_bundle(_folder(name, progress), variant)
    if precision not in (None, bundle.manifest.precision):
        raise UnsupportedError(f"{name} was exported in {bundle.manifest.precision}; export it again for {precision}")
    return bundle


def open_bundle(path: Path, variant: str | None = None) -> Bundle:
    """The bundle in a folder: with a manifest, one of ours; else one that others exported, in a variant."""
    if recognises(path):
        return read_foreign(path, variant)
    require_no_variant(str(path), variant)
    return load_bundle(path)


def require_no_variant(name: str, variant: str | None) -> None:
    """Raise `UnsupportedError` for a variant of a bundle of ours."""
    if variant is not None:
        raise UnsupportedError(f"a variant is for folders that others exported; {name} is a bundle of one precision")


def find_path(name: str, *, progress: Progress = silent) -> Path:
    """Where a bundle lies that `find_bundle` would find; one given by path may be damaged."""
    return find_bundle(name, progress=progress).path if is_on_demand(name) else _folder(name, progress)


def is_on_demand(name: str) -> bool:
    """Whether `name` stands for a bundle in the cache: not if there is a folder of that name, which comes first."""
    return bool(preset_name(name)) or (is_shipped(name) and not Path(name).exists())


def _folder(name: str, progress: Progress) -> Path:
    path = Path(name)
    _restore(path, progress)
    if recognises(path):
        return path
    if any((path / file).is_file() for file in (WEIGHTS, INDEX)) and not (path / MANIFEST).exists():
        raise BundleError(f"{name} is a checkpoint, not a bundle; `txport export {name} OUT` makes one")
    if not path.is_dir():
        known = ", ".join(shipped())
        raise BundleError(f"there is no bundle {name}; give the folder that `txport export` wrote, or one of: {known}")
    return path


def _restore(path: Path, progress: Progress) -> None:
    """Put back the bundle that an export had moved aside to replace it when it was killed, if that is so."""
    if path.exists():
        return
    try:
        if restore(resolve(path)):
            progress(f"put back {path}, which an export that was killed had moved aside")
    except OSError as error:
        raise BundleError(f"{path} is hidden beside its place, since an export was killed: {error}") from error


def checkpoint_of(bundle: Bundle) -> str:
    """The name of the checkpoint that a bundle was made from, if it ships or is a preset."""
    name = bundle.manifest.checkpoint["name"]
    if isinstance(bundle.manifest, ForeignManifest):
        raise UnsupportedError(f"{bundle.path} does not say what it was exported from; name it with --checkpoint")
    if not (name in shipped() or preset_name(name)):
        raise UnsupportedError(f"{bundle.path} was made from a checkpoint of yours, {name}; name it with --checkpoint")
    return name


def _from_cache(name: str, precision: str, progress: Progress) -> Bundle:
    import platformdirs

    path = platformdirs.user_cache_path("txport") / "bundles" / _key(name, precision)
    with contextlib.suppress(BundleError):
        return load_bundle(path)
    with _alone(path.parent, progress):
        try:
            return load_bundle(path)  # another process has made it meanwhile
        except BundleError:
            progress(f"exporting {name} to {path} (once; some seconds)")
            clean(path.parent)
            remove(path)  # damaged, if it is there at all
        try:
            return export(name, path, precision=precision)
        except OutputError:
            if path.is_dir():  # another process was quicker, where there are no locks
                return load_bundle(path)
            raise


@contextlib.contextmanager
def _alone(folder: Path, progress: Progress) -> Iterator[None]:
    """Make a folder if need be, and keep other processes out of such a block; they wait."""
    with contextlib.ExitStack() as stack:
        with told(folder, "export to a folder of your own"):
            folder.mkdir(parents=True, exist_ok=True)
            place = resolve(folder)
            with locked(place, without=True) as is_free:
                if not is_free:
                    progress("waiting for another process that exports to the cache")
            stack.enter_context(locked(place, wait=True, without=True))
        yield


def _key(name: str, precision: str) -> str:
    """A folder name that changes with the checkpoint and with the code that exports it."""
    code = hashlib.sha256()
    for folder in (SHIPPED, *(SHIPPED.parent / room for room in ("bundles", "exporters", "proof"))):
        for file in sorted(folder.rglob("*.py")):
            code.update(file.read_bytes())
    return f"{name.replace(':', '-')}-portable-{precision}-{__version__}-{digest(name)[:8]}-{code.hexdigest()[:8]}"
