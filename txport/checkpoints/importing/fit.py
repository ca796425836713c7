"""The table of an import: the use of each tensor of a checkpoint, and the sources of each tensor of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from txport.checkpoints import family
from txport.checkpoints.checkpoint import build_empty, check_tensors, load_checkpoint, save_checkpoint
from txport.checkpoints.folder import draft_advice, find_folder, split_loras
from txport.checkpoints.importing.draft import DIFFERING, nearest, open_weights
from txport.checkpoints.importing.roles import Template
from txport.checkpoints.sources.fitting import fitted, without_head
from txport.checkpoints.sources.native import ARCHITECTURE
from txport.checkpoints.sources.source import Source, read_named
from txport.checkpoints.weights.plan import Piece, Plan
from txport.checkpoints.weights.steps import Shape
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, OutputError, quoted
from txport.models import architecture
from txport.models.names import CONFIG, MANIFEST, RULES, SAMPLES, TARGET_TOKENIZER, TEXT, TOKENIZER, TRAINERS
from txport.system.documents import DocumentError, read_json, read_text
from txport.system.files import require_folder
from txport.system.paths import require_possible, told

LARGEST_TOKENIZER = 64 << 20  # bytes


@dataclass(frozen=True)
class Given:
    """A tensor of the files.

    `fate` is "used", "dropped", "spare" or "left over". `to` are the tensors of the model that are made from it, and
    `rules` are the rules that change it.
    """

    name: str
    shape: Shape
    fate: str
    to: tuple[str, ...]
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """A tensor of the model.

    `state` is "made", "missing", "misshapen" or "broken". `of` describes how it is made.
    """

    name: str
    shape: Shape
    state: str
    of: str


@dataclass(frozen=True)
class Fit:
    """A checkpoint compared with the model of its config: all tensors of both (`given`, `wanted`), and all problems."""

    path: Path
    architecture: str
    config: Mapping[str, object]
    given: tuple[Given, ...]
    wanted: tuple[Wanted, ...]
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if the checkpoint can be loaded."""
        return not self.problems

    def to_dict(self) -> dict[str, object]:
        """Return this table as JSON values."""
        return {
            "path": str(self.path),
            "architecture": self.architecture,
            "config": dict(self.config),
            "fits": self.passed,
            "problems": list(self.problems),
            "tensors": [asdict(each) for each in self.given],
            "model": [asdict(each) for each in self.wanted],
        }


@torch.no_grad()
def fit(name: str) -> Fit:
    """Compare a checkpoint of any format with the model of its config, reading one tensor at a time.

    Raises `CheckpointError` or `ConfigError` if the model is unknown or the files can't be read.
    """
    require_possible(name, CheckpointError)
    try:
        folder = find_folder(name)
        source = read_named(name)
    except (CheckpointError, ConfigError) as error:
        raise _unknown(Path(name), error) from error
    weights, made = fitted(source, build_empty(source.config))
    return _fit(folder, source, weights, made)


def _unknown(folder: Path, error: CheckpointError | ConfigError) -> CheckpointError | ConfigError:
    """Return the error about a folder; for unknown weights, with the nearest architecture and the differences."""
    if not _is_unknown(folder):
        return error
    try:
        draft = nearest(open_weights(folder))
    except CheckpointError:
        return error
    names = " or ".join((draft.variant.architecture, *draft.others))
    left = (("the file", draft.match.given), ("the model", draft.match.own))
    only = (f"only in {where}: {_names(several)}" for where, several in left if several)
    told = "; ".join([f"the nearest architecture is {names}", *only])
    advice = draft_advice(folder)
    return type(error)(f"{str(error).removesuffix(advice)}; {told}{advice}")


def _names(several: Sequence[Template]) -> str:
    more = f" and {len(several) - DIFFERING} more" if len(several) > DIFFERING else ""
    return ", ".join(quoted(each.name)[1:-1] for each in several[:DIFFERING]) + more


def _is_unknown(folder: Path) -> bool:
    """Return True if no file in a folder states which program wrote it."""
    if not folder.is_dir() or any((folder / file).is_file() for file in (RULES, MANIFEST)):
        return False
    try:
        values = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    except DocumentError:
        return False
    kind = values.get(family.TYPE)
    told = (*family.all_families(), *family.REFUSED)
    return ARCHITECTURE not in values and not (isinstance(kind, str) and kind in told)


def _fit(folder: Path, source: Source, weights: Weights, made: Plan) -> Fit:
    several = {"spare": made.spare, "dropped": made.dropped, "left over": made.unexpected}
    fates = {name: fate for fate, names in several.items() for name in names}
    uses: dict[str, list[tuple[str, Piece]]] = {name: [] for name in weights.shapes}
    for name, pieces in made.made.items():
        for piece in pieces:
            for given in piece.value.names():
                uses[given].append((name, piece))
    lacked = without_head(made)
    return Fit(
        path=folder,
        architecture=architecture.name_of(source.config),
        config=source.config.to_dict(),
        given=tuple(_given(name, made, uses[name], source, fates.get(name, "used")) for name in weights.shapes),
        wanted=tuple(_wanted(name, made) for name in made.expected),
        problems=(f"it {lacked}",) if lacked else tuple(check_tensors(made, weights, source)),
    )


def _given(name: str, made: Plan, uses: list[tuple[str, Piece]], source: Source, fate: str) -> Given:
    rules = {at: source.rules[at] for _, piece in uses for at in piece.rules}
    words = {at: f"{type(rule).__name__.lower()} {getattr(rule, 'pattern', '')}".strip() for at, rule in rules.items()}
    told = tuple(source.lines.get(at, words[at]) for at in rules)  # a user's rule is named by its line
    return Given(name, made.given[name], fate, tuple(dict.fromkeys(to for to, _ in uses)), told)


def _wanted(name: str, made: Plan) -> Wanted:
    pieces = made.made.get(name, ())
    states = {"broken": made.broken, "misshapen": made.misshapen, "made": made.made}
    state = next((state for state, names in states.items() if name in names), "missing")
    return Wanted(name, made.expected[name], state, " = ".join(str(piece.value) for piece in pieces))


def require_apart(name: str, out: Path, *, force: bool = False) -> None:
    """Raise `OutputError` unless a checkpoint can be written to `out`.

    `out` must not be the folder of the checkpoint `name`, nor have files that are read before the new ones.
    """
    require_possible(name, CheckpointError)
    require_possible(out, OutputError)
    source = Path(split_loras(name)[0])
    with told(out, "choose another place"):
        is_same = source.is_dir() and out.exists() and out.samefile(source)
    if is_same:
        raise OutputError(f"{out} holds the checkpoint itself; choose another place")
    for path in (path for mark in (RULES, *TRAINERS) for path in out.glob(mark)):
        raise OutputError(f"{out} holds {path.name}, which is read before what is written; choose another place")
    require_folder(out, force=force, holding=CONFIG)


def import_checkpoint(name: str, out: Path) -> None:
    """Write a checkpoint of any format as a txport checkpoint, atomically: config, weights, tokenizers, samples."""
    checkpoint = load_checkpoint(name)
    texts = {
        each: read_text(content, LARGEST_TOKENIZER) if isinstance(content, Path) else content
        for each, content in checkpoint.companions.items()
    }
    save_checkpoint(
        out,
        checkpoint.model if checkpoint.read is None else checkpoint.in_memory().model,
        texts.get(TOKENIZER),
        texts.get(TARGET_TOKENIZER),
        usage=texts.get(TEXT),
        samples=texts.get(SAMPLES),
        generation=checkpoint.generation,
    )
