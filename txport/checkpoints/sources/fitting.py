"""The weights of a source planned for its model, after the usual causes of a misfit: prefixes, LoRA, missing heads."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from torch import Tensor, nn

from txport.checkpoints.sources.source import Source
from txport.checkpoints.weights.plan import Plan, plan
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, quoted
from txport.models.rules import Drop
from txport.system.terminal import one_line

COMPILED = "_orig_mod."  # in names that torch.compile has changed, at any place
UNMERGED = re.compile(r"(^|\.)(lora_(A|B|embedding_[AB]|magnitude_vector)|base_layer|modules_to_save)\.")
# what GPTQ, AWQ, bitsandbytes, compressed-tensors, fp8 and MXFP4 store beside or instead of a weight
QUANTISED = re.compile(
    r"\.(qweight|qzeros|g_idx|SCB|weight_packed|weight_scale(_inv)?|absmax|quant_map|quant_state\..*|\w+_blocks)$"
)
CHECKED = 64  # rows of a table of positions
ROUNDED = 2**-8  # the largest error of sinusoids in bf16
HEAD = re.compile(r"(projection|lm_head|head|classifier)\.")

logger = logging.getLogger(__name__)


def fitted(source: Source, model: nn.Module) -> tuple[Weights, Plan]:
    """Return the weights of a source, and the plan that makes the model of them.

    If they do not fit, a prefix that all names have is removed, provided that everything fits then; a warning names it.
    Raises `CheckpointError` for weights that no model of this source has: of a LoRA, or quantised by another tool.
    """
    weights = source.weights()
    made = plan(source.rules, weights.shapes, model)
    if _fits(made):
        return weights, made
    for prefix, several in _without_prefixes(weights):
        other = plan(source.rules, several.shapes, model)
        if _fits(other):
            start = _removed(weights.shapes, several.shapes)
            _tell(source.place, f"all names begin with {start}" if start else f"names contain {prefix}")
            return several, other
    _require_plain(source.place, weights.shapes)
    return weights, made


def _fits(made: Plan) -> bool:
    return not (made.missing or made.unexpected or made.misshapen or made.misfits)


def _without_prefixes(weights: Weights) -> Iterator[tuple[str, Weights]]:
    """Yield the weights without what `torch.compile` adds to names, then also without each common prefix."""
    names = {name: name.replace(COMPILED, "") for name in weights.shapes}
    removed = COMPILED if any(name != new for name, new in names.items()) else ""
    if removed:
        yield removed, _renamed(weights, names)
    prefix = ""
    for parts in zip(*(name.split(".")[:-1] for name in names.values()), strict=False):
        if len({*parts}) > 1:
            return
        prefix += f"{parts[0]}."
        yield removed + prefix, _renamed(weights, {name: new.removeprefix(prefix) for name, new in names.items()})


def _removed(names: Iterable[str], shortened: Iterable[str]) -> str:
    """Return the start that all names have and all shortened names lack; "" if there is none."""
    starts = {name.removesuffix(new) for name, new in zip(names, shortened, strict=True)}
    return starts.pop() if len(starts) == 1 else ""


def _renamed(weights: Weights, names: dict[str, str]) -> Weights:
    """Return weights by new names; those whose new names are not distinct keep the old ones."""
    return weights.renamed(names) if len({*names.values()}) == len(names) else weights


def require_computed(source: Source, weights: Weights, made: Plan, model: nn.Module) -> None:
    """Raise `CheckpointError` for a tensor that is dropped since the model computes it, and that is another one."""
    tables = dict(model.named_buffers())
    rules = [rule for rule in source.rules if isinstance(rule, Drop) and rule.computed]
    for name in made.dropped:
        for rule in rules:
            table = tables.get(re.sub(f"^({rule.pattern})", rule.computed, name))
            if table is not None and not _is_same(weights[name], table):
                what = "differs from the positions that such a model computes, and would not be read"
                raise CheckpointError(f"{source.place}: {quoted(name)} {what}")


def _is_same(given: Tensor, table: Tensor) -> bool:
    """Return whether the first rows are those of a table; a row of zeros, of padding, may be any."""
    rows = given.reshape(-1, given.shape[-1])[:CHECKED].float()
    if rows.shape[1] != table.shape[1]:
        return False
    rows, table = rows[: len(table)], table[: len(rows)].float()
    return bool(((rows - table).abs() < ROUNDED).all(1).logical_or((rows == 0).all(1)).all())


@cache  # once per file
def _tell(place: Path, what: str) -> None:
    logger.warning("%s: %s, which is removed", one_line(str(place)), one_line(what))


def _require_plain(place: Path, names: Collection[str]) -> None:
    """Raise `CheckpointError` for the tensors of a LoRA, and for weights that another tool has quantised."""
    if name := next((name for name in names if UNMERGED.search(name)), None):
        fix = "merge it (merge_and_unload), and save the whole model (save_pretrained)"
        raise CheckpointError(f"{place} holds a LoRA that is not merged, such as {quoted(name)}: {fix}")
    if name := next((name for name in names if QUANTISED.search(name)), None):
        fix = "export the model that it was made from; precision='int8' quantises it"
        raise CheckpointError(f"{place} holds weights that another tool has quantised, such as {quoted(name)}: {fix}")


def without_head(made: Plan) -> str:
    """Return what is wrong if all that is missing is the model's head; otherwise an empty string."""
    missing = made.missing
    if not missing or made.unexpected or made.misshapen or made.misfits or not all(map(HEAD.match, missing)):
        return ""
    which = ", ".join(missing)
    fix = "save the class with the head, such as LlamaForCausalLM in place of LlamaModel"
    return f"has no head ({which}), as a class without one was saved: {fix}"
