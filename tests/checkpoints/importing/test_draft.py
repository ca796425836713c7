"""A draft of txport.toml: right for most foreign layouts without help, and a question where nothing tells."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.checkpoints.importing.layouts import HEADS, HYPERPARAMETERS, LAYOUTS, Tensors, fuse, renamed
from tests.checkpoints.sources.test_own_checkpoint import logits_of, tensors_of
from tests.proof.against import tutorials
from tests.recorded import FAMILIES
from tests.tiny import tiny_config, tiny_model
from txport.checkpoints.checkpoint import expected_tensors, load_checkpoint
from txport.checkpoints.importing.draft import write_draft
from txport.errors import CheckpointError, ConfigError, OutputError, TxportError
from txport.models.model import Model
from txport.models.names import CONFIG, RULES, WEIGHTS
from txport.proof.against.hold import hold_against

ASKED = {"fused_by_head", "unnamed"}  # of what no name and no shape tells
ANSWERS = {"query": "a", "key": "b", "value": "c", "output": "d"}  # for the layout without names


def save(folder: Path, weights: Tensors, hyperparameters: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(hyperparameters))
    return folder


def answer(file: Path, pattern: str, to: Callable[[re.Match[str]], str]) -> int:
    """Replace questions; -> how many."""
    text, count = re.subn(pattern, to, file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")
    return count


def answer_config(file: Path, true: dict[str, Any]) -> int:
    """Answer what no tensor tells of a config, and correct what was assumed."""
    open_ = r'^(\w+) = (?:"QUESTION.*|.*  # assumed, .*)$'
    return answer(file, open_, lambda found: f"{found[1]} = {json.dumps(true[found[1]])}")


@pytest.mark.parametrize(
    ("layout", "tied"),
    [(layout, ("all", "none")[at % 2]) for at, layout in enumerate(LAYOUTS)],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_foreign_layouts_load_to_the_same_logits(
    layout: Callable[[Tensors], Tensors], tied: str, tmp_path: Path
) -> None:
    model = tiny_model(tiny_config(tied=tied))
    weights = layout(tensors_of(model))
    weights = {re.sub("^(source_|target_)embedding.tokens", r"\1embed", name): each for name, each in weights.items()}
    folder = save(tmp_path / "foreign", weights, HYPERPARAMETERS)
    told = write_draft(folder, folder / RULES)
    assert told[0].startswith(f"{folder / RULES}  transformer, ")
    with pytest.raises(ConfigError, match="answer its questions first: line "):
        load_checkpoint(str(folder))
    answer_config(folder / RULES, model.config.to_dict())
    if layout.__name__ in ASKED:
        with pytest.raises(
            ConfigError, match=r"answer its questions first: line \d+: (which tensor|1 if all of query)"
        ):
            load_checkpoint(str(folder))
        answer(folder / RULES, r"groups = 'QUESTION[^']*'", lambda _: f"groups = {HEADS}")
        answer(
            folder / RULES,
            r"'QUESTION: which tensor is it\? (.*)', to = '(.*attention\.(\w+)\.\w+)'",
            lambda found: f"'{named(found[1].split(' or '), ANSWERS[found[3]], found[2])}', to = '{found[2]}'",
        )
    loaded = load_checkpoint(str(folder))
    assert loaded.facts == model.facts
    assert torch.equal(logits_of(loaded.model), logits_of(model))


def named(candidates: list[str], letter: str, to: str) -> str:
    """The candidate with this letter; its kind is that of the model's tensor."""
    (found,) = (each for each in candidates if re.search(rf"attn\\\.{letter}\\\.{to.rpartition('.')[2]}", each))
    return found


@pytest.mark.parametrize(
    ("name", "first"), [("llama", 1), ("qwen3", 0), ("t5", 0), ("distilbert", 0), ("phi3", 0)], ids=str
)
def test_models_of_others_are_recognised_without_their_config(name: str, first: int, tmp_path: Path) -> None:
    """By their tensors alone, whose layers may be counted from one: their config answers what these do not tell."""
    expected = load_checkpoint(str(FAMILIES / name))
    weights = load_file(FAMILIES / name / WEIGHTS)
    if first:
        weights = {
            re.sub(r"layers\.(\d+)", lambda at: f"layer{int(at[1]) + first}", key): each
            for key, each in weights.items()
        }
    save_file(weights, tmp_path / WEIGHTS)
    write_draft(tmp_path, tmp_path / RULES)
    assert answer_config(tmp_path / RULES, expected.config.to_dict()) > 0
    loaded = load_checkpoint(str(tmp_path))
    theirs = expected.model.state_dict()
    assert all(torch.equal(tensor, theirs[each]) for each, tensor in loaded.model.state_dict().items())
    assert loaded.facts == expected.facts


def test_norms_near_zero_are_asked_about(tmp_path: Path) -> None:
    """Gemma's multiply by 1 + weight, which no name tells."""
    shutil.copy(FAMILIES / "gemma" / WEIGHTS, tmp_path)
    write_draft(tmp_path, tmp_path / RULES)
    assert "QUESTION: norm\\.weight$ if norms multiply by 1 + weight" in (tmp_path / RULES).read_text()


def test_norms_after_sublayers_may_have_one_more_at_the_end(tmp_path: Path) -> None:
    """As PyTorch's own Transformer has: the tensors are those of norms before sublayers, so it is asked."""
    model = tiny_model(tiny_config(norm="post", final_norm=True))
    folder = save(tmp_path / "foreign", LAYOUTS[0](tensors_of(model)), HYPERPARAMETERS)
    write_draft(folder, folder / RULES)
    assert 'norm = "QUESTION: post or pre?' in (folder / RULES).read_text()
    answer_config(folder / RULES, model.config.to_dict())
    assert torch.equal(logits_of(load_checkpoint(str(folder)).model), logits_of(model))


OWN = [  # names as in docs/own-checkpoint.md
    (r"^decoder\.(\d+)\.", r"blocks.\1."),
    (r"target_embedding\.tokens", "tok"),
    (r"target_embedding\.positions", "pos.weight"),
    (r"feed_forward_residual\.norm", "ln2"),
    (r"attention_residual\.norm", "ln1"),
    (r"feed_forward\.inner", "fc1"),
    (r"feed_forward\.outer", "fc2"),
    (r"decoder_norm", "ln"),
    (r"projection", "head"),
]


def own_gpt(folder: Path, fused: str, end: str, *, across: bool = False) -> Model:
    """A model whose attentions are not called so: queries, keys and values in one tensor, and the map behind them."""
    model = load_checkpoint("preset:gpt2-tiny").model
    found = renamed(expected_tensors(model), [*OWN, (r"attention\.output", end), (r"attention\.", "")])
    for kind in ("weight", "bias"):
        fuse(found, rf"blocks\.\d+\.{{}}\.{kind}$", ("query", "key", "value"), fused)
    is_matrix = {name: each.dim() == 2 and name.startswith("blocks") for name, each in found.items()}
    save(folder, {name: each.t() if across and is_matrix[name] else each for name, each in found.items()}, {})
    return model


@pytest.mark.parametrize(
    ("fused", "end", "across"),
    [
        ("qkv", "out", False),
        ("qkv", "out", True),
        ("Wqkv", "proj", False),
        ("in_proj", "out_proj", True),
        ("c_attn", "c_proj", True),
        ("qkv", "o", False),
    ],
)
def test_what_is_fused_is_known_by_what_it_makes(fused: str, end: str, across: bool, tmp_path: Path) -> None:
    model = own_gpt(tmp_path / "own", fused, end, across=across)
    file = tmp_path / "own" / RULES
    write_draft(tmp_path / "own", file, "gpt2")
    assert "which tensor is it?" not in file.read_text()
    answer_config(file, model.config.to_dict())
    answer(file, r"groups = 'QUESTION: 1 if all of query comes first[^']*'", lambda _: "groups = 1")
    assert_same(tmp_path / "own", model)


def assert_same(folder: Path, model: Model) -> None:
    theirs = model.state_dict()
    config = load_checkpoint(str(folder)).config
    assert config == model.config
    assert all(
        torch.equal(each, theirs[name]) for name, each in load_checkpoint(str(folder)).model.state_dict().items()
    )


def test_queries_may_be_more_than_the_keys_and_values_beside_them(tmp_path: Path) -> None:
    model = load_checkpoint("preset:llama-tiny").model
    found = renamed(expected_tensors(model), [(r"^decoder\.(\d+)\.", r"blocks.\1."), (r"attention\.(?!output)", "")])
    for at in range(2):
        parts = [found.pop(f"blocks.{at}.{role}.weight") for role in ("query", "key", "value")]
        found[f"blocks.{at}.mix.weight"] = torch.cat(parts)
    file = save(tmp_path / "own", found, {}) / RULES
    write_draft(tmp_path / "own", file, "llama")
    answer_config(file, model.config.to_dict())
    assert (
        answer(file, r"'QUESTION: (\S*mix\S*) if it holds query, key, value[^']*'", lambda found: f"'{found[1]}'") == 1
    )
    assert answer(file, r"groups = 'QUESTION[^']*'", lambda _: "groups = 1") == 1
    assert_same(tmp_path / "own", model)


def test_no_answer_is_offered_that_the_sizes_contradict(tmp_path: Path) -> None:
    own_gpt(tmp_path / "own", "qkv", "out")  # of width 32, and 64 tokens
    write_draft(tmp_path / "own", tmp_path / "own" / RULES, "gpt2")
    asked = dict(re.findall(r'^(\w+) = "QUESTION: (.*)"$', (tmp_path / "own" / RULES).read_text(), re.MULTILINE))
    assert asked["heads"] == "which number?; it divides 32"
    assert asked["pad_id"] == asked["eos_id"] == "which number?"
    assert "norm_epsilon" not in asked


TUTORIALS = {
    "tutorial": {"heads": 4, "activation": "relu", "pad_id": 1, "bos_id": 2, "eos_id": 3},
    "book": {"heads": 4, "activation": "relu", "pad_id": 1, "bos_id": 2, "eos_id": 3},
}


@pytest.mark.parametrize("name", TUTORIALS)
def test_five_answers_make_a_draft_compute_what_the_original_does(name: str, tmp_path: Path) -> None:
    """The layouts of two well-known tutorials; no question offers a false answer, and what is assumed is marked."""
    module = getattr(tutorials, name)()
    folder = save(tmp_path / name, module.state_dict(), {})
    told = write_draft(folder, folder / RULES)
    assert ", 5 questions, " in told[0]
    text = (folder / RULES).read_text(encoding="utf-8")
    assert set(re.findall(r'^(\w+) = "QUESTION', text, re.MULTILINE)) == {*TUTORIALS[name]}
    assert not re.search("^(rename|drop|split).*QUESTION", text, re.MULTILINE)
    assert text.count("  # assumed, as usual") == int(told[0].split()[-3])
    answer(folder / RULES, r'^(\w+) = "QUESTION.*$', lambda at: f"{at[1]} = {json.dumps(TUTORIALS[name][at[1]])}")
    found = hold_against(str(folder), f"{tutorials.__file__}:{name}", trust_code=True)
    assert found.passed, list(found.lines())


def test_a_matrix_with_a_row_for_each_token_is_not_dropped_at_first(tmp_path: Path) -> None:
    weights = {re.sub(r"\bfc_out\b", "xyz", name): each for name, each in tutorials.tutorial().state_dict().items()}
    folder = save(tmp_path / "mine", weights, {})
    write_draft(folder, folder / RULES)
    text = (folder / RULES).read_text(encoding="utf-8")
    told = r"rename = { pattern = '^decoder\.xyz\.weight$', to = 'QUESTION: projection.weight if it gives the logits"
    assert told in text
    assert 'tied = "target"  # if the tensors that the rules do not name are no weights' in text


def test_questions_are_told_whole(tmp_path: Path) -> None:
    questions = [
        'activation = "QUESTION: a or b?; it is often \\"a\\" or \\\\d"',
        "heads = 'QUESTION: which?; 2'",
        "eos_id = 'QUESTION: which?'",
    ]
    rule = "split = { pattern = 'QUESTION: x if y', to = ['a', 'b'], groups = \"QUESTION: it's 1?\" }"
    lines = ["# QUESTION", 'architecture = "gpt2"', "[config]", *questions, "[[rule]]", rule]
    (tmp_path / RULES).write_text("\n".join(lines))
    with pytest.raises(ConfigError) as told:
        load_checkpoint(str(tmp_path))
    expected = [
        'line 4: a or b?; it is often "a" or \\d',
        "line 5: which?; 2",
        "line 6: which?",
        "line 8: x if y",
        "line 8: it's 1?",
    ]
    assert str(told.value) == f"{tmp_path / RULES}: answer its questions first: {'; '.join(expected)}"


def test_a_draft_says_why_it_can_t_be_made(tmp_path: Path) -> None:
    folder = save(tmp_path / "foreign", load_file(FAMILIES / "gpt2" / WEIGHTS), {})
    with pytest.raises(
        ConfigError, match="may be of several architectures, gpt2 or opt; say which with architecture=NAME"
    ):
        write_draft(folder, folder / RULES)
    with pytest.raises(ConfigError, match="unknown architecture 'gpt3'; there are "):
        write_draft(folder, folder / RULES, "gpt3")
    with pytest.raises(OutputError, match="must lie beside the weights"):
        write_draft(folder, tmp_path / RULES, "gpt2")
    with pytest.raises(CheckpointError, match=r"there is no .*nowhere; give a folder with weights"):
        write_draft(tmp_path / "nowhere", tmp_path / "nowhere" / RULES)
    write_draft(folder / WEIGHTS, folder / RULES, "gpt2")
    with pytest.raises(OutputError, match="exists; a draft replaces no file"):
        write_draft(folder, folder / RULES, "gpt2")


WORDS = [
    "enc",
    "dec",
    "layers",
    "0",
    "1",
    "q",
    "attn",
    "mlp",
    "weight",
    "bias",
    "ln",
    "x'",
    "y\n",
    "é\x7f",
    '"',
    "embed",
]
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@settings(
    max_examples=30, deadline=None, phases=[Phase.generate], derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    shapes=st.dictionaries(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(".".join), SHAPES, max_size=12)
)
def test_any_tensors_give_a_draft_that_asks(
    shapes: dict[str, tuple[int, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = save(tmp_path_factory.mktemp("odd"), {name: torch.zeros(shape) for name, shape in shapes.items()}, {})
    try:
        write_draft(folder, folder / RULES, "gpt2")
        load_checkpoint(str(folder))
    except TxportError as error:
        told = str(error)
    assert "\n" not in told
    assert "TOML" not in told


def beside_one_another(size: int, inner: int, mixed: int) -> Tensors:
    """A decoder whose maps have no names of the parts that they are of."""
    shapes = {"emb.weight": (50, size), "pos.weight": (24, size), "norm.weight": (size,), "norm.bias": (size,)}
    layer = {"ln1": (size,), "ln2": (size,), "qkv": (3 * mixed, size), "out": (size, mixed)}
    layer |= {"fc": (inner, size), "proj": (size, inner)}
    for number in range(2):
        for name, shape in layer.items():
            shapes |= {f"blocks.{number}.{name}.weight": shape, f"blocks.{number}.{name}.bias": shape[:1]}
    drawn = torch.Generator().manual_seed(0)
    shapes |= {"head.weight": (50, size)}
    return {name: torch.rand(shape, generator=drawn) + 0.5 for name, shape in shapes.items()}


@pytest.mark.parametrize(("inner", "mixed"), [(128, 32), (128, 48), (32, 32)])
def test_maps_without_a_part_are_told_apart_by_their_shapes(inner: int, mixed: int, tmp_path: Path) -> None:
    """The one behind attention is square, the others are not; else it is a question."""
    save_file(beside_one_another(32, inner, mixed), tmp_path / WEIGHTS)
    write_draft(tmp_path, tmp_path / RULES)
    text = (tmp_path / RULES).read_text(encoding="utf-8")
    own = {"out": "attention.output", "fc": "feed_forward.inner", "proj": "feed_forward.outer"}
    lines = [
        rf"rename = {{ pattern = '^blocks\.(\d+)\.{given}\.{kind}$', to = 'decoder.\1.{to}.{kind}' }}  # likely"
        for given, to in own.items()
        for kind in ("weight", "bias")
    ]
    is_told = mixed == 32 != inner
    assert [line in text for line in lines] == [is_told] * len(lines)
    assert is_told or "QUESTION: which tensor is it?" in text
