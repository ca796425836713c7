"""Diagnosis of packages that are missing or fail to import: name, reason and fix."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any

from txport.errors import TxportError, UnavailableError, brief
from txport.system.machine import is_out_of_memory


@functools.cache
def version_of(package: str) -> str:
    """Return the version of an installed package; cached per process."""
    import importlib.metadata  # many modules, which a bundle that is only run does not need

    return importlib.metadata.version(package)


def named(reference: str) -> Any:
    """Return what "module:name" refers to, and import its module."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def needed(install: str, what: str = "this") -> Iterator[None]:
    """Raise `UnavailableError` if an import in this block fails because a package is missing or broken.

    `what`: the feature that needs the package. `install`: the argument of `pip install` that provides it.
    """
    try:
        yield
    except TxportError:
        raise
    except Exception as error:
        if problem := import_problem(error, install, what):
            raise UnavailableError(problem) from error
        raise


def import_problem(error: BaseException, install: str = "txport[export]", what: str = "this") -> str | None:
    """Return a message with the fix if `error` is about a package that did not import, otherwise None."""
    if is_out_of_memory(error):
        return None
    package = _package(error)
    if package is None:
        return None
    if isinstance(error, ModuleNotFoundError) and (error.name == package or not _is_there(package)):
        return f"{what} needs {package}, which is not installed: pip install '{install}'"
    return f"{what} needs {package}, which is installed but does not import: {reason(error)}; {fix(package)}"


def reason(error: BaseException) -> str:
    """Return the message of the first error in a chain: later ones often contain only advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return brief(error) or type(error).__name__


def fix(package: str) -> str:
    """Return the pip command or instruction that reinstalls a package."""
    import importlib.metadata

    wheels = sorted(set(importlib.metadata.packages_distributions().get(package, [package])))
    if len(wheels) > 1:
        return f"pip uninstall all of {', '.join(wheels)}, then install one: they overwrite each other's files"
    return f"pip install --force-reinstall {wheels[0]}"


def _package(error: BaseException) -> str | None:
    """Return the third-party package whose import raised the error: the innermost one of nested imports."""
    if isinstance(error, ModuleNotFoundError):
        return _foreign(error.name)
    if package := _imported_at(error.__traceback__):
        return package
    if isinstance(error, ImportError):
        return _foreign(error.name)
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):  # files of two wheels mixed
        return _foreign(error.obj.__name__)
    return None


def _imported_at(frames: TracebackType | None) -> str | None:
    last = None
    while frames is not None:
        if frames.tb_frame.f_code.co_name == "<module>":
            last = _foreign(frames.tb_frame.f_globals.get("__name__")) or last
        frames = frames.tb_next
    return last


def _foreign(module: str | None) -> str | None:
    package = (module or "").partition(".")[0]
    return None if package in ("", "__main__", "txport") or package in sys.stdlib_module_names else package


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a test, or a user, has put None in its place
        return False
