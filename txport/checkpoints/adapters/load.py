"""Conversion of a user's module with its adapter, or of a file of code that defines both, to a checkpoint."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from txport.checkpoints.adapters.adapted import LIBRARIES, Adapted, line_of
from txport.checkpoints.adapters.adapter import Adapter
from txport.checkpoints.checkpoint import NAMED, Checkpoint, check_text
from txport.checkpoints.folder import code_name
from txport.errors import CheckpointError, UnsupportedError, brief
from txport.system.files import hash_of, sha256
from txport.system.machine import is_out_of_memory
from txport.text.convert import companions_of

PACKAGE = Path(__file__).parents[2]
MODULE = "txport_user_code"  # module name of a file of the user's, before the hash of its path


def adapt(module: object, adapter: object, name: str | None = None) -> Checkpoint:
    """Copy a module to the CPU in float32, for inference, and return it as a checkpoint.

    `name` is its name in a bundle; the default is the name of its class. Raises `UnsupportedError` for arguments of
    other types, `CheckpointError` for a module that can't be used.
    """
    if not isinstance(module, nn.Module):
        raise UnsupportedError(f"an adapter is for a torch.nn.Module, got a {type(module).__name__}")
    if not isinstance(adapter, Adapter):
        raise UnsupportedError(f"adapter must be one of txport.adapters, got a {type(adapter).__name__}")
    name = name or type(module).__name__
    model = Adapted(_copied(module, name), adapter).eval()
    _check(model, name)
    folder = None if adapter.folder is None else Path(adapter.folder)
    if folder is not None:
        if not folder.is_dir():
            raise CheckpointError(f"there is no folder {folder}, of which the adapter of {name} takes the tokenizers")
        check_text(folder, adapter.facts, companions_of(folder))
    model.fp32_only = _float64_problem(model)
    return Checkpoint(name, model, _digest(model, folder), folder)


def load_code(name: str) -> Checkpoint:
    """Return the checkpoint for `model.py:NAME`: run the file, and load the module by its adapter `NAME`.

    Raises `CheckpointError` if the code fails or does not define such an adapter.
    """
    found = code_name(name)
    assert found is not None
    path, variable = found
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    with _searched(path.resolve().parent):
        with running(f"{path} does not run"):
            adapter = getattr(imported(path), variable, None)
        if not isinstance(adapter, Adapter):
            what = "is not there" if adapter is None else f"is a {type(adapter).__name__}"
            raise CheckpointError(f"{variable} of {path} must be an adapter of txport.adapters, and {what}")
        if adapter.load is None:
            raise CheckpointError(f"{variable} of {path} needs load, a function that gives the module with its weights")
        with running(f"load of {path} fails"):
            module = adapter.load()
    return adapt(module, adapter, f"{path.name}:{variable}")


@contextlib.contextmanager
def _searched(folder: Path) -> Iterator[None]:
    """Let modules be imported from a folder; those of the same names from other folders are set aside meanwhile."""
    others = {name: each for name, each in _named_as_in(folder).items() if not _file(each).is_relative_to(folder)}
    for name in others:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.modules.update(others)
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _named_as_in(folder: Path) -> dict[str, ModuleType]:
    """Return the imported modules of users, with their names, that are named as files of a folder."""
    beside = {each.stem for each in folder.iterdir()}
    return {name: each for name, each in sys.modules.items() if name.partition(".")[0] in beside and _is_code(each)}


def imported(path: Path) -> ModuleType:
    """Import a file as a module; it can import modules from its own folder."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    name = f"{MODULE}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes look their module up
    with _searched(path.resolve().parent):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def at_home(path: Path) -> Iterator[None]:
    """Isolate a file of code from its import to its last run; it can import modules from its folder at any time.

    Modules of the same names from other folders are set aside. On exit, all is restored: modules, `sys.path`, the
    working directory, default dtype and device, gradient mode and PyTorch's random state. Output to stdout goes to
    stderr.
    """
    folder = path.resolve().parent
    dtype = torch.get_default_dtype()
    device = torch.get_default_device()
    place = Path.cwd()
    search = sys.path[:]
    has_gradients = torch.is_grad_enabled()
    others = _named_as_in(folder)
    for name in others:
        del sys.modules[name]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.chdir(place)
        sys.path[:] = search
        torch.set_grad_enabled(has_gradients)
        for name in set(sys.modules) - before:
            if _is_code(sys.modules[name]) and not _file(sys.modules[name]).is_relative_to(PACKAGE):
                del sys.modules[name]
        sys.modules.update(others)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)


def _is_code(module: ModuleType) -> bool:
    """Return True if a module is the user's code, not an installed package."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not file.startswith(LIBRARIES) and "site-packages" not in Path(file).parts


def _file(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__).resolve()


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Convert errors of the user's code, `SystemExit` included, to `CheckpointError` with the line."""
    try:
        yield
    except (CheckpointError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{what}: {type(error).__name__}: {brief(error)}{line_of(error)}") from error


def _copied(module: nn.Module, name: str) -> nn.Module:
    if any(each.is_meta for each in (*module.parameters(), *module.buffers())):
        raise CheckpointError(f"{name} has weights without values, on the meta device; load them first")
    try:
        return copy.deepcopy(module).cpu().float().eval()
    except Exception as error:  # copying a user's module can raise anything
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{name} can't be copied: {type(error).__name__}: {brief(error)}") from error


def _check(model: Adapted, name: str) -> None:
    """Raise `CheckpointError` unless a module has floating-point weights and all of them are finite."""
    floats = {key: each for key, each in model.named_parameters() if each.is_floating_point()}
    if not floats:
        raise CheckpointError(f"{name} has no floating-point parameters; an adapter is for a module with weights")
    problems = [f"{key} holds NaN or infinity" for key, each in floats.items() if not torch.isfinite(each).all()]
    if problems:
        raise CheckpointError(f"{name} has weights that are no numbers: {'; '.join(sorted(problems)[:NAMED])}")


def _float64_problem(model: Adapted) -> str:
    """Return the error of a run in float64, or "" if there is none; raise `CheckpointError` if even fp32 fails."""
    model.probe()
    try:
        copy.deepcopy(model).double().probe()
    except CheckpointError as error:
        return str(error)
    return ""


def _digest(model: Adapted, folder: Path | None) -> str:
    """Return a SHA-256 over weights, facts, tokenizers, and the files of code of the module and its adapter."""
    texts = {} if folder is None else companions_of(folder)
    tensors = dict(model.module.named_buffers()) | dict(model.module.named_parameters())
    return hash_of(
        {
            **{f"tensor {name}": _hash_of_tensor(each) for name, each in tensors.items()},
            **{f"file {number} {path.name}": sha256(path) for number, path in enumerate(sources(model))},
            **{name: _hash_of_text(each) for name, each in texts.items()},
            "facts": repr(model.facts.to_dict()),
        }
    )


def _hash_of_text(given: Path | str) -> str:
    return sha256(given) if isinstance(given, Path) else hashlib.sha256(given.encode()).hexdigest()


def _hash_of_tensor(tensor: Tensor) -> str:
    array = tensor.detach().contiguous().numpy()
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def sources(model: Adapted) -> list[Path]:
    """Return the files that define the module's classes and its adapter's functions; code without a file has none."""
    own = [type(each) for each in model.module.modules() if not type(each).__module__.startswith("torch.")]
    found = set()
    for each in (*own, *map(inspect.unwrap, model.adapter.functions())):
        with contextlib.suppress(TypeError, OSError):
            path = Path(inspect.getsourcefile(each) or "")
            if path.is_file():
                found.add(path.resolve())
    return sorted(found)
