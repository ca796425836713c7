"""Checks of output paths, before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from txport.errors import UnsupportedError
from txport.system.files import is_stream, require_file, require_folder
from txport.system.places import resolve


def require_outputs(
    files: Mapping[str, Path | None], *, keep: Path | None = None, inputs: Mapping[str, Path | None] | None = None
) -> None:
    """Raise `OutputError` if a file can't be written, or the folder `keep` can't be created.

    `files` and `inputs` are paths by option. Raises `UnsupportedError` if two options name the same file, or a file
    would replace one of the `inputs`. Files can be in `keep`, which is created before they are written.
    """
    given = {option: path for option, path in files.items() if path}
    if keep:
        require_folder(keep)
        given["--keep"] = keep
    named = {option: resolve(path) for option, path in given.items() if not is_stream(path)}
    for (option, path), (other, same) in combinations(named.items(), 2):
        if path == same:
            raise UnsupportedError(f"{option} and {other} name the same place, {given[option]}; give each its own")
    for reads, source in (inputs or {}).items():
        for option in (option for option, path in named.items() if source and path == resolve(source)):
            raise UnsupportedError(f"{option} would replace what {reads} reads, {source}; choose another place")
    for option in named.keys() - {"--keep"}:
        if not keep or named[option].parent != named["--keep"]:
            require_file(given[option])
    for option in given.keys() - named.keys():
        require_file(given[option])
