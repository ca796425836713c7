"""What a user may call a checkpoint: a path, the name of one that ships, or a preset. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from txport.errors import CheckpointError
from txport.models.config import Config
from txport.system.files import complete, hash_of, sha256
from txport.system.packages import needed

PRESET = "preset:"
CONFIG, WEIGHTS, SAMPLES = "config.json", "model.safetensors", "samples.txt"
TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"
COMPANIONS = (TOKENIZER, TARGET_TOKENIZER, SAMPLES)  # what a bundle takes over from its checkpoint as it is
LARGEST_SAMPLES = 1 << 20  # bytes
GOLDEN = "golden.npz"  # of a bundle
SHIPPED = Path(__file__).parent


def shipped() -> list[str]:
    """Names of the checkpoints that come with txport."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def is_shipped(name: str) -> bool:
    """Whether `name` means a checkpoint that ships: only a folder that holds one too stands in the way, no bundle."""
    return name in shipped() and not (Path(name) / WEIGHTS).is_file()


def preset_name(name: str) -> str | None:
    """`base` of `preset:base`; None for any other name."""
    return name.removeprefix(PRESET) if name.startswith(PRESET) else None


def presets() -> Mapping[str, Config]:
    """Published sizes of all architectures, which are PyTorch modules; `UnavailableError` where that is not here."""
    with needed("txport[export]", "a preset"):
        from txport.models import architecture
    return architecture.presets()


def preset_config(preset: str) -> Config:
    """The config of a preset; `CheckpointError` if there is none of this name."""
    known = presets()
    if preset not in known:
        raise CheckpointError(f"unknown preset {preset!r}; there are {', '.join(known)}")
    return known[preset]


def find_folder(name: str) -> Path:
    """The folder of a checkpoint given by path or shipped name."""
    folder = SHIPPED / name if is_shipped(name) else Path(name)
    if not folder.is_dir():
        known = ", ".join([*shipped(), f"{PRESET}NAME"])
        raise CheckpointError(f"there is no checkpoint {name}; give a folder with {CONFIG}, or one of {known}")
    try:
        complete(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} was being saved, which can't be completed: {error.strerror}") from error
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} is not a checkpoint: {CONFIG} is missing")
    return folder


def digest(name: str) -> str:
    """One SHA-256 over all that makes a checkpoint."""
    if preset := preset_name(name):
        return hash_of({"preset": preset, "config": repr(preset_config(preset))})
    folder = find_folder(name)
    files = (folder / file for file in (CONFIG, WEIGHTS, *COMPANIONS))
    return hash_of({path.name: sha256(path) for path in files if path.is_file()})


def label(name: str) -> str:
    """What a bundle calls the checkpoint that it was made from: a name, never a path of this machine."""
    return name if preset_name(name) or is_shipped(name) else Path(name).resolve().name
