"""`txport import`: shows how the tensors of a checkpoint are mapped, and converts it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from txport.cli import completion, textio
from txport.cli.guard import echo
from txport.cli.options import lora_option
from txport.cli.outputs import OUTPUT, OUTPUT_FOLDER, command
from txport.errors import UnsupportedError
from txport.system.packages import needed

if TYPE_CHECKING:
    from txport.checkpoints.importing.fit import Fit
    from txport.proof.against.verdict import Verdict

FURTHER = 40  # problems to show


@command("import")
@click.argument("source", shell_complete=completion.models)
@click.argument("out", type=OUTPUT_FOLDER, required=False, shell_complete=completion.folders)
@lora_option("SOURCE")
@click.option(
    "--draft-map",
    type=OUTPUT,
    help="Write a draft of txport.toml for the weights of SOURCE (a folder or a file) to this path; import nothing.",
)
@click.option(
    "--at", default="", metavar="KEYS", help="Keys that lead to the weights inside a pickle, for --draft-map."
)
@click.option(
    "--architecture", help="Architecture of the draft that --draft-map writes.  [default: the one that fits best]"
)
@click.option(
    "--against",
    metavar="ORIGINAL",
    help="Run the original model on the same inputs, and report the first layer that differs: model.py:NAME, "
    "transformers, or a folder that transformers runs; docs/own-checkpoint.md.",
)
@click.option("--trust-code", is_flag=True, help="Run the code of an ORIGINAL that is given as model.py:NAME.")
@click.option("--force", is_flag=True, help="Replace the checkpoint in OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole table as JSON.")
def import_(
    source: str,
    out: Path | None,
    loras: tuple[str, ...],
    draft_map: Path | None,
    at: str,
    architecture: str | None,
    against: str | None,
    trust_code: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Show how each tensor of SOURCE is mapped, and write SOURCE to OUT as a txport checkpoint.

    SOURCE is a folder of transformers, a txport checkpoint, or your own folder with a txport.toml. All missing, unused
    and wrongly shaped tensors are reported together (exit 2). OUT gets config.json, model.safetensors and the
    tokenizers. With --against, exit 1 without writing OUT if the import and the original differ.
    """
    if architecture is not None and draft_map is None:
        raise UnsupportedError("--architecture needs --draft-map; an import reads it from txport.toml or config.json")
    if at and draft_map is None:
        raise UnsupportedError("--at needs --draft-map; for an import, set `at` in txport.toml")
    if draft_map is not None:
        if against is not None:
            raise UnsupportedError("--against can't be combined with --draft-map, which imports nothing")
        if out is not None or loras or as_json or force:
            fix = "remove OUT, --lora, --force and --json"
            raise UnsupportedError(f"--draft-map writes a draft, not a checkpoint; {fix}")
        _draft(source, draft_map, architecture, at)
        return
    if trust_code and against is None:
        raise UnsupportedError("--trust-code needs --against model.py:NAME; an import runs no code")
    with needed("txport[export]", "an import"):
        from txport.checkpoints.folder import with_loras
        from txport.checkpoints.importing.fit import fit, import_checkpoint, require_apart
        from txport.proof.against.hold import hold_against, require_original
    source = with_loras(source, loras)
    if against is not None:
        require_original(against, trust_code=trust_code)
    if out is not None:
        require_apart(source, out, force=force)
    found = fit(source)
    verdict = hold_against(source, against, trust_code=trust_code) if found.passed and against is not None else None
    _tell(found, verdict, as_json=as_json)
    if out is not None:
        import_checkpoint(source, out)
        if not as_json:
            echo(f"{out}  {found.architecture}, {len(found.wanted)} tensors")


def _tell(found: Fit, verdict: Verdict | None, *, as_json: bool) -> None:
    """Print the mapping and the comparison; exit with 2 if tensors do not fit, with 1 if the results differ."""
    if as_json:
        more = {} if verdict is None else {"against": verdict.to_dict()}
        textio.print_json({**found.to_dict(), **more}, indent=2)
    else:
        show(found)
        if verdict is not None:
            show_against(verdict)
    if not found.passed:
        raise SystemExit(2)
    if verdict is not None and not verdict.passed:
        raise SystemExit(1)


def _draft(source: str, file: Path, architecture: str | None, at: str) -> None:
    with needed("txport[export]", "a draft"):
        from txport.checkpoints.importing.draft import write_draft
    for line in write_draft(Path(source), file, architecture, at):
        echo(line)


def show(found: Fit) -> None:
    """Print two tables, of the files' tensors and of the model's, then the problems and the verdict."""
    from txport.cli import tables

    given = [
        (each.name, str(each.shape), each.fate if each.fate != "used" else ", ".join(each.to), "; ".join(each.rules))
        for each in found.given
    ]
    tables.show(f"{found.path}: {len(given)} tensors", ["tensor of the file", "shape", "becomes", "by"], given)
    echo()
    wanted = [
        (each.name, str(each.shape), each.of if each.state == "made" else f"{each.state.upper()} {each.of}".strip())
        for each in found.wanted
    ]
    tables.show(f"{found.architecture}: {len(wanted)} tensors", ["tensor of the model", "shape", "made of"], wanted)
    echo()
    for problem in found.problems[:FURTHER]:
        echo(f"problem: {problem}")
    if (rest := len(found.problems) - FURTHER) > 0:
        echo(f"problem: {rest} more, which --json names")
    echo(f"verdict: {'fits' if found.passed else f'does NOT fit, {len(found.problems)} problems'}")


def show_against(verdict: Verdict) -> None:
    """Print how far the outputs agree; if they differ, the first difference of import and original, and its cause."""
    echo()
    for line in verdict.lines():
        echo(line)
    echo(f"verdict: {'computes' if verdict.passed else 'does NOT compute'} what {verdict.original} does")
