"""`txport import --against`: an import beside its original, and the first layer at which they part."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import txport
from tests.proof.against import originals, tutorials
from tests.proof.against.originals import HEADS, INNER, LAYERS, LONGEST, SIZE, WINDOW, WORDS
from tests.recorded import FAMILIES
from txport.checkpoints import checkpoint
from txport.errors import CheckpointError, OutOfMemoryError, UnsupportedError
from txport.models.names import RULES, WEIGHTS
from txport.proof.against.hold import hold_against
from txport.proof.against.original import Original
from txport.proof.against.pairing import Origins, share_of
from txport.proof.against.verdict import Agreement, Verdict
from txport.system import memory

FILE = Path(originals.__file__)
MASKED = FILE.with_name("masked.py")
Values = dict[str, Any]
Rules = list[str]

GPT: Values = {
    "architecture": "gpt2",
    "vocab_size": WORDS,
    "d_model": SIZE,
    "heads": HEADS,
    "decoder_layers": LAYERS,
    "feed_forward": INNER,
    "max_length": LONGEST,
    "activation": "gelu",
    "tied": False,
    "pad_id": 0,
    "eos_id": 1,
}
LLAMA: Values = {
    **{key: value for key, value in GPT.items() if key not in ("eos_id", "activation")},
    "architecture": "llama",
    "norm_epsilon": 1e-6,
    "tied": True,
    "scale_embedding": True,
}
SEQ2SEQ: Values = {
    "architecture": "transformer",
    "source_vocab_size": WORDS,
    "target_vocab_size": WORDS,
    "d_model": SIZE,
    "heads": HEADS,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "feed_forward": INNER,
    "max_length": LONGEST,
    "norm": "pre",
    "tied": "none",
    "output_bias": True,
}


def rename(pattern: str, to: str) -> str:
    return f"rename = {{ pattern = '{pattern}', to = '{to}' }}"


def split(pattern: str, *to: str, more: str = "") -> str:
    return f"split = {{ pattern = '{pattern}', to = {json.dumps(list(to))}{more} }}"


ROLES = [".attention.query.", ".attention.key.", ".attention.value."]
NAMES = [
    "drop = 'steps'",
    rename(r"^blocks\.", "decoder."),
    rename(r"^tok\.", "target_embedding.tokens."),
    rename(r"^pos\.weight", "target_embedding.positions"),
    rename(r"^ln\.", "decoder_norm."),
    rename(r"^head\.", "projection."),
    rename(r"\.ln1\.", ".attention_residual.norm."),
    rename(r"\.ln2\.", ".feed_forward_residual.norm."),
    rename(r"\.up\.", ".feed_forward.inner."),
    rename(r"\.gate\.", ".feed_forward.gate."),
    rename(r"\.down\.", ".feed_forward.outer."),
    rename(r"\.attn\.q\.", ROLES[0]),
    rename(r"\.attn\.k\.", ROLES[1]),
    rename(r"\.attn\.v\.", ROLES[2]),
    rename(r"\.attn\.o\.", ".attention.output."),
]
FUSED = split(r"\.attn\.qkv\.", *ROLES)
TURNED = "transpose = '(attn|up|down)\\.?.*weight$'"
IN_PROJ = [split(r"\.attn\.mix\.in_proj_", *ROLES), rename(r"\.attn\.mix\.out_proj\.", ".attention.output.")]
SHIFT = "shift = { pattern = 'ln\\d?\\.weight$', by = 1.0 }"
PAIRS = "permute = { pattern = 'attn\\.[qk]\\.', view = [4, -1, 2], order = [0, 2, 1] }"
OWN_NAMES = [
    rename("^words.weight", "source_embedding.tokens.weight"),
    "tie = { name = 'target_embedding.tokens.weight', of = 'source_embedding.tokens.weight' }",
]
RIGHT: dict[str, tuple[Values, Rules]] = {
    "separate": (GPT, NAMES),
    "fused": (GPT, [FUSED, *NAMES]),
    "across": (GPT, [TURNED, FUSED, *NAMES]),
    "separate_across": (GPT, [TURNED, *NAMES]),
    "by_head": (GPT, [split(r"\.attn\.qkv\.", *ROLES, more=f", groups = {HEADS}"), *NAMES]),
    "whole": (GPT, [*IN_PROJ, *NAMES]),
    "divided": (GPT, NAMES),
    "float32_only": (GPT, [split(r"\.attn\.qkv\.", *ROLES, more=f", groups = {HEADS}"), *NAMES]),
    "functional": (GPT, NAMES),
    "flat": (GPT, NAMES),
    "tied": ({**GPT, "tied": True}, NAMES),
    "halves": (LLAMA, [SHIFT, *NAMES]),
    "interleaved": (LLAMA, [SHIFT, PAIRS, *NAMES]),
    "grouped": ({**LLAMA, "key_heads": 2}, [SHIFT, *NAMES]),
    "windowed": ({**LLAMA, "windows": [WINDOW] * LAYERS}, [SHIFT, *NAMES]),
    "translator": (SEQ2SEQ, OWN_NAMES),
    "translator_post": ({**SEQ2SEQ, "norm": "post"}, OWN_NAMES),
    "translator_barred": (SEQ2SEQ, OWN_NAMES),
    "inline": (GPT, NAMES),
}


def original(name: str) -> torch.nn.Module:
    module: torch.nn.Module = getattr(tutorials if hasattr(tutorials, name) else originals, name)()
    return module


def save(folder: Path, name: str, config: Values, rules: Rules, prefix: str = "") -> Path:
    """The weights of an original, and what they are said to be."""
    folder.mkdir(parents=True, exist_ok=True)
    module = original(name)
    save_file({prefix + key: each.clone().contiguous() for key, each in module.state_dict().items()}, folder / WEIGHTS)
    values = dict(config)
    lines = [f"architecture = {json.dumps(values.pop('architecture'))}", "[config]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    text = "\n".join([*lines, *(f"[[rule]]\n{each}" for each in rules)])
    (folder / RULES).write_text(text, encoding="utf-8")
    return folder


def fitting(name: str, rules: Rules) -> Rules:
    """Without renames that do nothing for an original: they are errors."""
    state = original(name).state_dict()
    patterns = {each: re.search(r"(?:pattern|drop|transpose) = '([^']*)'", each) for each in rules}
    return [
        each
        for each in rules
        if each not in NAMES or (found := patterns[each]) is None or any(re.search(found[1], key) for key in state)
    ]


def against(tmp_path: Path, name: str, config: Values, rules: Rules, file: Path = FILE) -> Verdict:
    folder = save(tmp_path / name, name, config, fitting(name, rules))
    return hold_against(str(folder), f"{file}:{name}", trust_code=True)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_import_computes_what_its_original_does(name: str, tmp_path: Path) -> None:
    found = against(tmp_path, name, *RIGHT[name])
    assert found.passed, list(found.lines())
    (logits,) = found.outputs
    assert logits.error < (1e-5 if name == "float32_only" else 1e-7) * logits.largest  # some tables are in fp32
    assert (logits.alike, found.dtype) == (logits.places, "float32" if name == "float32_only" else "float64")


@pytest.mark.parametrize("name", ["tied", "whole", "divided", "translator"])
def test_a_large_import_is_compared_without_its_weights_in_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the original reads the weights of modules that it does not call, and to the same cause."""
    config, rules = RIGHT[name]
    wrong = {**config, "activation": "relu" if name != "translator" else "gelu"}
    whole = against(tmp_path / "whole", name, wrong, rules).parting
    monkeypatch.setattr(checkpoint, "STREAMED_ABOVE", 0)
    assert against(tmp_path / "right", name, config, rules).passed
    streamed = against(tmp_path / "streamed", name, wrong, rules).parting
    assert whole is not None
    assert streamed is not None
    assert (streamed.where, streamed.what.split(";")[0]) == (whole.where, whole.what.split(";")[0])
    if name in ("whole", "translator"):  # they read the weights of modules that they do not call
        return
    monkeypatch.setattr(memory, "require", _refuse)
    refused = against(tmp_path / "refused", name, wrong, rules).parting
    assert refused is not None
    assert refused.what == "not found: no room"


def _refuse(size: int, what: str) -> None:
    if "all weights" in what:
        raise OutOfMemoryError("no room")


def test_which_rows_of_a_file_a_matrix_is() -> None:
    """Rows and columns in any order, also where the matrix lies across, and nothing else."""
    draw = torch.Generator().manual_seed(0)
    for height, width in ((6, 4), (4, 6), (5, 5), (1, 3), (3, 1), (1, 1)):
        file = torch.arange(height * width, dtype=torch.int32).reshape(height, width)
        for across in (False, True):
            down, along = (torch.randperm(each, generator=draw) for each in (height, width))
            down = down[: max(1, height - 1)]
            straight = file[down][:, along]
            share = share_of(straight.t() if across else straight, "w", (height, width))
            assert share is not None
            found = share.rows(across=across)
            assert found.inputs is not None
            outputs, inputs = (along, down) if across else (down, along)
            assert (found.outputs.tolist(), found.inputs.tolist()) == (outputs.tolist(), inputs.tolist())
    file = torch.arange(24).reshape(6, 4)
    for other in (file.reshape(4, 6), file.reshape(3, 8), torch.cat([file[:, :2], file[:, 2:].flip(0)], 1)):
        assert share_of(other, "w", (6, 4)) is None


@pytest.mark.parametrize("name", ["by_head"])
def test_numbers_are_followed_to_the_files_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all batches together: they are as large as the weights themselves."""
    asked: list[str] = []
    numbers = Origins.numbers

    def counted(self: Origins, name: str) -> torch.Tensor | None:
        found = numbers(self, name)
        assert found is None or found.dtype == torch.int32
        asked.extend([name] if found is not None and found.dim() == 2 else [])
        return found

    monkeypatch.setattr(Origins, "numbers", counted)
    config, rules = RIGHT[name]
    assert not against(tmp_path, name, {**config, "activation": "relu"}, rules).passed
    assert len(asked) == len(set(asked)) > 0


def test_memory_for_both_models_is_asked_for_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory, "require", lambda size, what: asked.append(size))
    against(tmp_path, "separate", *RIGHT["separate"])
    weights = sum(each.numel() for each in originals.separate().parameters())
    assert asked[0] >= 2 * 8 * weights
    monkeypatch.undo()
    monkeypatch.setattr(memory, "available", lambda: asked[0] - 1)
    with pytest.raises(OutOfMemoryError, match=r"comparison of .*separate with .*originals\.py:separate needs .* free"):
        against(tmp_path, "separate", *RIGHT["separate"])


def test_an_original_that_is_told_what_is_padding_is_given_some(tmp_path: Path) -> None:
    found = against(tmp_path, "translator", *RIGHT["translator"], file=MASKED)
    assert found.passed, list(found.lines())
    plain = against(tmp_path, "translator", *RIGHT["translator"])
    assert found.outputs[0].places > plain.outputs[0].places


@pytest.mark.parametrize("prefix", ["module.", "model.net."])
def test_a_checkpoint_may_have_a_prefix_that_the_original_has_not(prefix: str, tmp_path: Path) -> None:
    rules = [rename(rf"^{re.escape(prefix)}", ""), *NAMES]
    folder = save(tmp_path / "prefixed", "separate", GPT, fitting("separate", rules), prefix)
    (folder / RULES).write_text((folder / RULES).read_text().replace("drop = 'steps'", "drop = '.*steps'"))
    assert hold_against(str(folder), f"{FILE}:separate", trust_code=True).passed


def without(rules: Rules, *left_out: str) -> Rules:
    return [each for each in rules if each not in left_out]


def exchanged(*pairs: tuple[str, str]) -> Rules:
    """The names of roles, some of which took each other's place."""
    table = dict(pairs) | {other: one for one, other in pairs}
    return [re.sub(r"(?<=attn\\\.)\w", lambda found: table.get(found[0], found[0]), each) for each in NAMES]


GATES = [rename(r"\.gate\.", ".feed_forward.inner."), rename(r"\.up\.", ".feed_forward.gate.")]
SWAPPED = [*GATES, *(each for each in NAMES if "gate" not in each and "up" not in each)]
ATTENTION, NORM_OF = "decoder layer 0, self-attention", "decoder layer 0, norm of self-attention"
EMBEDDED = "encoder, embedding"
Fault = tuple[str, Values, Rules, str, str, str]  # an original, config, rules -> where, kind, words
FAULTS: dict[str, Fault] = {
    "a square matrix": (
        "separate_across",
        GPT,
        ["transpose = '(attn.[kvo]|up|down)\\.?.*weight$'", *NAMES],
        f"{ATTENTION}, query",
        "transposed",
        "its weight is transposed",
    ),
    "a matrix within PyTorch's attention": (
        "whole",
        GPT,
        [*IN_PROJ, "transpose = 'attention\\.value\\.weight$'", *NAMES],
        ATTENTION,
        "transposed",
        "the weight of its value is transposed",
    ),
    "queries and keys": ("separate", GPT, exchanged(("q", "k")), ATTENTION, "heads", "queries and keys are exchanged"),
    "cut without heads": (
        "by_head",
        GPT,
        [FUSED, *NAMES],
        ATTENTION,
        "heads",
        "of each of 4 heads its queries, keys, values: split it with groups = 4",
    ),
    "cut wrongly within PyTorch's attention": (
        "whole",
        GPT,
        [split(r"\.attn\.mix\.in_proj_", ROLES[1], ROLES[0], ROLES[2]), *IN_PROJ[1:], *NAMES],
        ATTENTION,
        "heads",
        "queries and keys are exchanged",
    ),
    "pairs of neighbours": (
        "interleaved",
        LLAMA,
        [SHIFT, *NAMES],
        ATTENTION,
        "position",
        "queries and keys are rotated in pairs that are interleaved, in place of halves",
    ),
    "rows that are permuted": (
        "halves",
        LLAMA,
        [SHIFT, PAIRS, *NAMES],
        ATTENTION,
        "heads",
        "rows of queries and keys stand in the order of the files",
    ),
    "columns that are permuted": (
        "halves",
        LLAMA,
        [SHIFT, PAIRS.replace("[qk]", "o").replace("1] }", "1], axis = -1 }"), *NAMES],
        ATTENTION,
        "heads",
        "columns of its output projection stand in the order of the files",
    ),
    "base": (
        "halves",
        {**LLAMA, "rotary_base": 5e5},
        [SHIFT, *NAMES],
        ATTENTION,
        "position",
        "rotated with the base 10000, the import's is 5e+05",
    ),
    "epsilon": (
        "separate",
        {**GPT, "norm_epsilon": 1e-6},
        NAMES,
        NORM_OF,
        "epsilon",
        "in the original, epsilon is 1e-05, the import's is 1e-06",
    ),
    "weights that count from one": (
        "halves",
        LLAMA,
        NAMES,
        NORM_OF,
        "weight",
        "in the original, 1 is added to its weight",
    ),
    "activation": (
        "separate",
        {**GPT, "activation": "gelu_tanh"},
        NAMES,
        "decoder layer 0, feed-forward",
        "activation",
        "in the original, gelu in place of gelu_tanh",
    ),
    "a window beyond short rows": (
        "windowed",
        LLAMA,
        [SHIFT, *NAMES],
        ATTENTION,
        "window",
        "in the original, it sees the last 16 tokens, the import's layer all",
    ),
    "keys of tokens that lie in one dimension": (
        "flat",
        GPT,
        exchanged(("q", "k")),
        ATTENTION,
        "heads",
        "queries and keys are exchanged",
    ),
    "a window that the original has not": (
        "halves",
        {**LLAMA, "windows": [WINDOW, 0]},
        [SHIFT, *NAMES],
        ATTENTION,
        "window",
        "in the original, it sees all tokens before it, the import's layer the last 16",
    ),
    "gate": (
        "halves",
        LLAMA,
        [SHIFT, *SWAPPED],
        "decoder layer 0, feed-forward",
        "gate",
        "the gate and the up projection are exchanged",
    ),
    "scale of tokens": (
        "halves",
        {**LLAMA, "scale_embedding": False},
        [SHIFT, *NAMES],
        "decoder, embedding",
        "scale",
        "the embedding of a token is scaled by 4 of the import's",
    ),
    "scale of scores": (
        "halves",
        {**LLAMA, "attention_scale": 1.0},
        [SHIFT, *NAMES],
        ATTENTION,
        "scale",
        "scores are scaled by 0.5 of the import's",
    ),
    "order of sinusoids": (
        "translator",
        {**SEQ2SEQ, "sinusoids": "halves"},
        OWN_NAMES,
        EMBEDDED,
        "position",
        "sinusoids are those of the layout 'interleaved'",
    ),
    "a transposed projection, beside a huge logit": (
        "translator_barred",
        {**SEQ2SEQ, "output_bias": True},
        [*OWN_NAMES, "permute = { pattern = '^projection.weight|^generator.weight', view = [-1, 2], order = [1, 0] }"],
        "projection to the vocabulary",
        "unknown",
        "no cause that is known gives what the original gives",
    ),
    "offset": ("translator_shifted", SEQ2SEQ, OWN_NAMES, EMBEDDED, "position", "positions are off by +1"),
    "norms before sublayers": (
        "translator_post",
        {**SEQ2SEQ, "final_norm": False},
        OWN_NAMES,
        "encoder layer 0, norm of self-attention",
        "order",
        "the norm of each sublayer stands after the residual, the import has it before it",
    ),
    "norms after sublayers": (
        "translator",
        {**SEQ2SEQ, "norm": "post", "final_norm": True},
        OWN_NAMES,
        "encoder layer 0, norm of self-attention",
        "order",
        "the norm of each sublayer stands before it, the import has it after the residual",
    ),
    "a projection that is dropped": (
        "separate",
        {**GPT, "tied": True},
        ["drop = 'head'", *without(NAMES, rename(r"^head\.", "projection."))],
        "the output logits",
        "tensor",
        "it comes of head of the original, with head.weight of the files",
    ),
    "a bias that is dropped": (
        "translator",
        {**SEQ2SEQ, "output_bias": False},
        [*OWN_NAMES, "drop = 'generator.bias'"],
        "projection to the vocabulary",
        "bias",
        "generator.bias of the files is added to it",
    ),
    "keys of one layer, where work is divided otherwise": (
        "divided",
        GPT,
        [
            rename(r"^blocks\.1\.attn\.k\.", "decoder.1.attention.query."),
            rename(r"^blocks\.1\.attn\.q\.", "decoder.1.attention.key."),
            *NAMES,
        ],
        "decoder layer 1, self-attention",
        "heads",
        "queries and keys are exchanged",
    ),
    "log-softmax": (
        "translator",
        {**SEQ2SEQ, "output": "log_probs"},
        OWN_NAMES,
        "the output logits",
        "output",
        "the original gives logits, the import their log-softmax",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_import_is_named_where_it_is(fault: str, tmp_path: Path) -> None:
    name, config, rules, where, kind, words = FAULTS[fault]
    found = against(tmp_path, name, config, rules)
    assert found.parting is not None
    told = "\n".join(found.lines())
    assert found.parting.where.startswith(where) or found.parting.where.endswith(where), told
    assert (found.parting.kind, words in found.parting.what) == (kind, True), told
    if kind not in ("order", "unknown"):
        assert found.parting.left is not None
        assert found.parting.left < 0.02 * found.parting.error


@pytest.mark.parametrize(
    ("name", "sizes", "told"),
    [
        ("separate", {"heads": 1}, "there are 4 heads of size 4, the import has 1 of size 16"),
        ("whole", {"heads": 16}, "there are 4 heads of size 4, the import has 16 of size 1"),
        ("halves", {"heads": 2}, "there are 4 heads of size 4, the import has 2 of size 8"),
        (
            "grouped",
            {"heads": 8, "key_heads": 4},
            "there are 4 heads of size 4 over 2 of keys and values, the import has 8 of size 2 over 4 of keys and",
        ),
    ],
)
def test_a_wrong_number_of_heads_is_named(name: str, sizes: Values, told: str, tmp_path: Path) -> None:
    config, rules = RIGHT[name]
    found = against(tmp_path, name, {**config, **sizes}, rules)
    assert found.parting is not None
    assert (found.parting.kind, found.parting.what.startswith(f"in the original, {told}")) == ("heads", True), found
    assert found.parting.where.endswith("layer 0, self-attention")
    assert found.parting.left is not None
    assert found.parting.left < 1e-6 * found.parting.error


TUTORIAL: Values = {
    **{key: value for key, value in SEQ2SEQ.items() if key != "norm"},
    "positions": "learned",
    "pad_id": tutorials.PAD,
    "bos_id": 2,
    "eos_id": 3,
}
TUTORIAL_NAMES = [
    rename(r"^encoder\.tok_embedding\.", "source_embedding.tokens."),
    rename(r"^decoder\.tok_embedding\.", "target_embedding.tokens."),
    rename(r"^encoder\.pos_embedding\.weight", "source_embedding.positions"),
    rename(r"^decoder\.pos_embedding\.weight", "target_embedding.positions"),
    rename(r"^decoder\.fc_out\.", "projection."),
    rename(r"^(encoder|decoder)\.layers\.", r"\1."),
    rename(r"\.self_attn_layer_norm\.", ".attention_residual.norm."),
    rename(r"\.enc_attn_layer_norm\.", ".cross_attention_residual.norm."),
    rename(r"\.ff_layer_norm\.", ".feed_forward_residual.norm."),
    rename(r"\.self_attention\.", ".attention."),
    rename(r"\.encoder_attention\.", ".cross_attention."),
    rename(r"\.fc_q\.", ".query."),
    rename(r"\.fc_k\.", ".key."),
    rename(r"\.fc_v\.", ".value."),
    rename(r"\.fc_o\.", ".output."),
    rename(r"\.positionwise_feedforward\.fc_1\.", ".feed_forward.inner."),
    rename(r"\.positionwise_feedforward\.fc_2\.", ".feed_forward.outer."),
]


def with_exchanged(one: str, other: str) -> Rules:
    """The rules of the tutorial after one that exchanges two prefixes of the original's names."""
    apart = [rename(f"^{one}", "@"), rename(f"^{other}", one.replace("\\", "")), rename("^@", other.replace("\\", ""))]
    return [*apart, *TUTORIAL_NAMES]


def in_each_layer(one: str, other: str) -> Rules:
    """The rules of the tutorial after one that exchanges two modules of each layer of the decoder."""
    within = r"^(decoder\.layers\.\d\.)"
    apart = [rename(within + one, r"\1@"), rename(within + other, rf"\1{one}"), rename("@", other)]
    return [*apart, *TUTORIAL_NAMES]


WHOLE: dict[str, tuple[Values, Rules, str, str, str]] = {
    "norms": (
        {},
        in_each_layer("self_attn_layer_norm", "enc_attn_layer_norm"),
        "decoder layer 0, norm of self-attention",
        "exchanged",
        "of decoder.0.attention_residual.norm and decoder.0.cross_attention_residual.norm are exchanged, alike",
    ),
    "self- and cross-attention": (
        {},
        in_each_layer("self_attention", "encoder_attention"),
        "decoder layer 0, self-attention",
        "exchanged",
        "the tensors of decoder.0.attention and decoder.0.cross_attention are exchanged, alike in all layers",
    ),
    "embeddings of tokens": (
        {},
        with_exchanged(r"encoder\.tok_embedding", r"decoder\.tok_embedding"),
        "encoder, embedding",
        "exchanged",
        "the tensors of source_embedding.tokens and target_embedding.tokens are exchanged",
    ),
    "layers": (
        {},
        with_exchanged(r"encoder\.layers\.0\.", r"encoder\.layers\.1\."),
        "encoder",
        "layers",
        "the layers of the encoder are in another order: the original runs the import's layers 1, 0",
    ),
    "padding": (
        {"pad_id": 0},
        TUTORIAL_NAMES,
        "the tokens of the input",
        "padding",
        "the original masks token 1 wherever it is, as padding; the import's pad_id is 0",
    ),
}


@pytest.mark.parametrize("fault", WHOLE)
def test_a_cause_is_tested_on_the_whole_import(fault: str, tmp_path: Path) -> None:
    more, rules, where, kind, words = WHOLE[fault]
    found = against(tmp_path, "tutorial", {**TUTORIAL, **more}, rules, Path(tutorials.__file__))
    told = "\n".join(found.lines())
    assert found.parting is not None, told
    assert (found.parting.where, found.parting.kind, words in found.parting.what) == (where, kind, True), told
    assert found.parting.left is not None
    assert found.parting.left < 1e-6 * found.parting.error


def test_what_is_exchanged_is_found_where_no_modules_are_called(tmp_path: Path) -> None:
    """Queries and keys in layers that call none of their linear layers."""
    found = against(tmp_path, "inline", GPT, exchanged(("q", "k")))
    assert found.parting is not None
    words = "the tensors of decoder.0.attention.query and decoder.0.attention.key are exchanged, alike in all layers"
    assert found.parting.what == words


@pytest.mark.parametrize("layer", range(LAYERS))
def test_an_unknown_fault_lies_in_the_part_that_runs_between_what_agrees_and_what_does_not(
    layer: int, tmp_path: Path
) -> None:
    found = against(tmp_path, f"inline_{layer}", GPT, NAMES)
    assert found.parting is not None
    assert (found.parting.where, found.parting.kind) == (f"decoder layer {layer}, self-attention", "unknown")


def test_exchanged_norms_are_no_other_order(tmp_path: Path) -> None:
    """Beside another fault, which no single change explains, no position of norms is told."""
    rules = in_each_layer("self_attn_layer_norm", "enc_attn_layer_norm")
    drop = "drop = 'decoder.fc_out.bias'"
    values = {**TUTORIAL, "output_bias": False}
    found = against(tmp_path, "tutorial", values, [drop, *rules], Path(tutorials.__file__))
    assert found.parting is not None
    assert found.parting.kind != "order", list(found.lines())


def test_special_ids_that_are_not_compared_are_named(tmp_path: Path) -> None:
    """The tutorial's model masks its padding itself; nothing else computes with a special token."""
    found = against(tmp_path, "tutorial", TUTORIAL, TUTORIAL_NAMES, Path(tutorials.__file__))
    assert found.passed
    assert "special ids are not compared: bos_id, start_id, eos_id" in found.lines()
    other = against(tmp_path, "translator", *RIGHT["translator"])
    assert "special ids are not compared: pad_id, bos_id, start_id, eos_id" in other.lines()
    assert other.to_dict()["special_ids"] == ["pad_id", "bos_id", "start_id", "eos_id"]


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("barring", 1e9, "token 0 (-1e+09)"),
        ("infinite", torch.inf, "tokens 0, 3 (-inf)"),
        ("mostly_barred", 1e9, "tokens 0, 1, 2, 3, 4 and 25 more (-1e+09)"),
    ],
)
def test_an_original_that_masks_tokens_is_told_to_leave_that_to_the_search(
    name: str, error: float, told: str, tmp_path: Path
) -> None:
    found = against(tmp_path, name, GPT, NAMES)
    assert found.parting is not None
    fix = "leave that out of it, and give suppress_tokens"
    assert found.parting.what == f"the original masks the logits of {told}: {fix}"
    assert [found.outputs[0].error, found.parting.error] == pytest.approx([error, error], rel=1e-6)
    assert found.parting.left is not None
    assert found.parting.left < 1e-9
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["parting"]["kind"] == "mask"


@pytest.mark.parametrize("name", ["barring", "infinite", "mostly_barred"])
def test_masked_tokens_hide_no_other_error(name: str, tmp_path: Path) -> None:
    found = against(tmp_path, name, {**GPT, "norm_epsilon": 1e-3}, NAMES)
    assert found.parting is not None
    assert found.parting.kind == "epsilon"
    assert found.outputs[0].largest < 1e3 or found.outputs[0].ordinary is not None


@pytest.mark.parametrize(("epsilon", "is_sure"), [(1.001e-5, False), (2e-5, False), (1e-3, True)])
def test_an_error_that_nothing_explains_is_no_rounding(epsilon: float, is_sure: bool, tmp_path: Path) -> None:
    found = against(tmp_path, "functional", {**GPT, "norm_epsilon": epsilon}, NAMES)
    told = "\n".join(found.lines())
    assert found.parting is not None, told
    assert found.parting.kind == "unknown", told
    assert ("which is more than rounding in float64" in found.parting.what) != is_sure, told
    assert not found.outputs[0].passed


def test_outputs_that_are_not_compared_are_named() -> None:
    logits = Agreement("last_hidden_state", 0.0, 1.0, 3, None, passed=True)
    found = Verdict("model.py:Net", "float64", (logits,), None, 11, not_compared=("pooler_output",))
    assert "not compared: pooler_output, which the original does not give" in found.lines()
    assert found.to_dict()["not_compared"] == ["pooler_output"]


@pytest.mark.parametrize("kind", [tuple, lambda pair: {"start_logits": pair[0], "ends": pair[1]}])
def test_outputs_of_one_shape_are_taken_in_their_order(kind: Callable[[Any], Any]) -> None:
    """Starts and ends of answers, as modules return them: a tuple, or a dict with names of its own."""
    first, second = torch.zeros(2, 5), torch.ones(2, 5)
    original = Original("it", nn.Identity(), lambda module, given: None, {}, masks=False)
    found = original.chosen(kind([first, second]), {"start_logits": first, "end_logits": second})
    assert torch.equal(found["start_logits"], first)
    assert torch.equal(found["end_logits"], second)


def test_it_says_up_to_how_many_tokens_it_compared(tmp_path: Path) -> None:
    found = against(tmp_path, "separate", GPT, NAMES)
    assert (found.tokens, found.to_dict()["tokens"], found.not_reached) == (LONGEST, LONGEST, ())
    assert f"compared up to {LONGEST} tokens" in found.lines()


def test_an_original_may_run_fewer_tokens_than_the_import_says(tmp_path: Path) -> None:
    found = against(tmp_path, "halves", {**LLAMA, "max_length": 4000}, [SHIFT, *NAMES])
    assert (found.passed, found.tokens) == (True, 309)
    short = against(tmp_path, "short_rows", {**LLAMA, "max_length": 4000, "windows": [30] * LAYERS}, [SHIFT, *NAMES])
    assert (short.passed, short.tokens) == (True, 19)
    window, more = short.not_reached
    assert window == "not the window of 30"
    assert more.startswith("not more: originals.py:short_rows fails in torch.float64: IndexError")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "own", "separate", GPT, fitting("separate", NAMES))


CODE = """
import torch
from torch import nn
from tests.proof.against.originals import Gpt, Separate, separate, unsteady

class Exits(Gpt):
    def forward(self, ids):
        raise SystemExit(0)

def exits():
    return Exits(Separate, nn.Linear)

class NoTensor(Gpt):
    def forward(self, ids):
        return "nothing"

class Short(Gpt):
    def forward(self, ids):
        return super().forward(ids)[:, -1]

class Raises(Gpt):
    def forward(self, ids):
        return self.there_is_no_such_thing

class Broken(Gpt):
    def forward(self, ids):
        return super().forward(ids) / 0 * 0

def of(kind):
    return lambda: kind(Separate, nn.Linear)

no_tensor, short, raises, broken = map(of, (NoTensor, Short, Raises, Broken))

def other():
    module = separate()
    module.head = nn.Linear(3, 4)
    del module.pos
    module.more = nn.Linear(2, 2)
    return module

def fewer():
    module = separate()
    del module.head
    return module

def fails():
    raise RuntimeError("no such file")

def lazy():
    module = separate()
    module.head = nn.LazyLinear(4)
    return module

def expanded():
    module = separate()
    module.tok.weight = nn.Parameter(torch.ones(1, 1).expand(40, 16))
    return module

class Copies(Gpt):
    def state_dict(self, *args, **options):
        return {name: each.detach().clone() for name, each in super().state_dict(*args, **options).items()}

copies = of(Copies)
text = lambda: "text"
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere of {file} must be a class or a function that gives a torch.nn.Module, and is not there"),
        ("text", "text of {file} must give a torch.nn.Module, and gives a str"),
        ("Gpt", "Gpt of {file} needs arguments (missing a required argument: 'attention'); name a function in the"),
        ("fails", "fails of {file} fails: RuntimeError: no such file (model.py, line "),
        ("exits", "model.py:exits fails in torch.float32: SystemExit: 0 (model.py, line 8)"),
        ("raises", "model.py:raises fails in torch.float32: AttributeError: 'Raises' object has no attribute"),
        ("no_tensor", "model.py:no_tensor gives no tensor but a str; the import gives logits"),
        ("short", "model.py:short gives a tensor of shape (3, 40), the import gives logits of (3, 5, 40)"),
        ("unsteady", "model.py:unsteady gives other values each time for the same input: look for dropout"),
        ("broken", "model.py:broken gives logits with NaN or infinity"),
        ("other", "head.weight is (4, 3), there (40, 16); head.bias (4,) is missing; more.bias (2,) is missing; and 1"),
        ("lazy", "lazy of {file} gives a module with lazy parts, which have no shape yet; run it once there"),
        ("expanded", "tok.weight of expanded of {file} does not take the checkpoint's numbers: RuntimeError: "),
        ("copies", "state_dict of copies of {file} gives a copy of steps, which no weights can be loaded into"),
        ("fewer", "model.py:fewer has no tensor for head.weight of {folder}/model.safetensors, which the import needs"),
    ],
)
def test_what_is_no_original_is_one_line(name: str, message: str, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(CODE, encoding="utf-8")
    with pytest.raises(CheckpointError) as told:
        hold_against(str(folder), f"{file}:{name}", trust_code=True)
    assert message.format(file=file, folder=folder) in str(told.value)
    assert "\n" not in str(told.value)


def test_code_that_does_not_run_is_one_line(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    with pytest.raises(CheckpointError, match=r"there is no file .*model\.py"):
        hold_against(str(folder), f"{file}:separate", trust_code=True)
    file.write_text("import torch\n1 / 0\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"model\.py does not run: ZeroDivisionError: .* \(model\.py, line 2\)"):
        hold_against(str(folder), f"{file}:separate", trust_code=True)


def test_code_may_import_late_and_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = ModuleType("beside")  # of a folder that was imported before
    another.__file__ = str(tmp_path / "beside.py")
    monkeypatch.setitem(sys.modules, "beside", another)
    state = torch.get_rng_state()
    dtype = torch.get_default_dtype()
    folder_before = Path.cwd()
    paths = sys.path[:]
    modules = set(sys.modules)
    for place, relu in (("one", False), ("other", True)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "beside.py").write_text(f"RELU = {relu}", encoding="utf-8")
        (tmp_path / place / "more").mkdir()
        (tmp_path / place / "more" / "aside.py").write_text("", encoding="utf-8")
        (tmp_path / place / "later.py").write_text("from torch.nn import functional as F", encoding="utf-8")
        file = tmp_path / place / "model.py"
        file.write_text(LATE, encoding="utf-8")
        found = hold_against(str(folder), f"{file}:net", trust_code=True)
        assert found.passed != relu
        assert "later" not in sys.modules
        assert sys.modules["beside"] is another
    assert (Path.cwd(), sys.path) == (folder_before, paths)
    assert not {"aside", "later"} & (set(sys.modules) - modules)
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_default_dtype(), torch.get_default_device().type) == (dtype, "cpu")


LATE = """
import os
import sys
import torch
sys.path.append(os.path.join(os.path.dirname(__file__), "more"))
os.chdir(os.path.dirname(__file__))
torch.set_grad_enabled(False)
import aside
from tests.proof.against.originals import Gpt, Separate
torch.set_default_dtype(torch.float64)

class Net(Gpt):
    def forward(self, ids):
        import later
        return later.F.relu(super().forward(ids)) if self.relu else super().forward(ids)

def net():
    import beside
    torch.manual_seed(5)
    module = Net(Separate, torch.nn.Linear)
    module.relu = beside.RELU
    return module
"""


@pytest.mark.parametrize("name", ["scripted", "with_gradients", "talks"])
def test_an_original_may_be_unusual(name: str, run: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(UNUSUAL, encoding="utf-8")
    code, out, err = run(folder, "--against", f"{tmp_path / 'model.py'}:{name}", "--trust-code", "--json")
    assert code == 0, err
    assert json.loads(out)["against"]["equal"]


UNUSUAL = """
import warnings
import torch
from tests.proof.against.originals import Gpt, Separate, separate

def scripted():
    module = separate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.ln = torch.jit.script(module.ln)
    return module

class Needing(Gpt):
    def forward(self, ids):
        return super().forward(ids).requires_grad_()

def with_gradients():
    torch.manual_seed(1)
    return Needing(Separate, torch.nn.Linear)

def talks():
    print("{")
    return separate()
"""


def test_the_command_says_whether_they_are_equal(run: Any, folder: Path, tmp_path: Path) -> None:
    original = f"{FILE}:separate"
    code, out, err = run(folder, tmp_path / "out", "--against", original, "--trust-code")
    assert (code, err) == (0, "")
    assert "verdict: computes what originals.py:separate does" in out.splitlines()
    assert (tmp_path / "out" / WEIGHTS).is_file()
    code, out, _ = run(folder, "--against", original, "--trust-code", "--json")
    told = json.loads(out)
    assert (code, told["fits"], told["against"]["equal"], told["against"]["parting"]) == (0, True, True, None)


def test_an_import_that_parts_is_not_written(run: Any, tmp_path: Path) -> None:
    folder = save(tmp_path / "own", "separate", {**GPT, "activation": "relu"}, fitting("separate", NAMES))
    original = f"{FILE}:separate"
    code, out, err = run(folder, tmp_path / "out", "--against", original, "--trust-code")
    assert (code, err, (tmp_path / "out").exists()) == (1, "", False)
    assert out.splitlines()[-1] == "verdict: does NOT compute what originals.py:separate does"
    assert "cause:    in the original, gelu in place of relu; with that changed, the two agree within 0" in out
    code, out, _ = run(folder, "--against", original, "--trust-code", "--json")
    parting = json.loads(out)["against"]["parting"]
    assert (code, parting["kind"], parting["part"]) == (1, "activation", "decoder.0.feed_forward.outer")
    assert parting["theirs"] == ["blocks.0.down"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--against", "{file}:separate"], 2, "is code, which runs only if you trust it: give --trust-code"),
        (["--trust-code"], 2, "--trust-code needs --against model.py:NAME; an import runs no code"),
        (["--against", "model.py"], 2, "give a file and the class or function in it"),
        (["--against", "{file}/.."], 2, "give a file and the class or function in it"),
        (["--against", "nowhere/model.py:net", "--trust-code"], 2, "there is no file nowhere/model.py"),
        (["--against", "transformers", "--trust-code"], 2, "--trust-code is for an original that is a file of code"),
        (["--against", "transformers", "--draft-map", "x"], 2, "--against can't be combined with --draft-map"),
        (["--against", "transformers"], 2, "has no config.json, by which transformers would know what it is"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], code: int, message: str, run: Any, folder: Path) -> None:
    found, out, err = run(folder, *(each.format(file=FILE) for each in arguments))
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err


def test_transformers_that_is_not_installed_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, out, err = run(FAMILIES / "gpt2", "--against", "transformers")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "a comparison with transformers needs transformers, which is not installed: pip install 'txport[hf]'" in err


def test_an_export_without_weights_is_compared_with_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="nothing can be compared with an original; leave out"):
        txport.export("preset:tiny", tmp_path / "out", weights=False, against="transformers")
