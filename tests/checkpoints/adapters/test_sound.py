"""A wrong adapter is found in PyTorch itself, before any export, and the mistake is told by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpoints.adapters.modules import (
    ALIBI,
    CACHE,
    CLASSIFIER,
    HEADS,
    LONGEST,
    SIZE,
    SOURCE,
    TARGET,
    TOKENS,
    TUTORIAL,
    WORDS,
    Tagger,
    alibi_step,
    attend,
    encoder_of,
    load_alibi,
    load_classifier,
    load_tutorial,
    seeded,
    split,
    tutorial_encode,
    tutorial_step,
)
from txport import adapters
from txport.api.release import load_checkpoint
from txport.checkpoints.adapters.adapted import Adapted
from txport.errors import CheckpointError, ConfigError, ParityError, TxportError, UnsupportedError

Step = Callable[[Any, adapters.StepInputs], Any]


def wrong(error: type[TxportError], module: nn.Module, adapter: adapters.Adapter) -> str:
    with pytest.raises(error) as found:
        load_checkpoint(module, adapter=adapter)
    assert "\n" not in str(found.value)
    return str(found.value)


def causal(step: Step) -> adapters.Adapter:
    return dataclasses.replace(ALIBI, step=step)


@pytest.mark.parametrize(
    ("module", "adapter"), [(load_alibi, ALIBI), (load_classifier, CLASSIFIER), (load_tutorial, TUTORIAL)]
)
def test_adapters_that_are_right_pass_and_compute_in_float64(module: Any, adapter: adapters.Adapter) -> None:
    found = load_checkpoint(module(), adapter=adapter)
    assert found.model.fp32_only == ""
    assert found.described["architecture"] == "adapter"
    assert found.sha256 == load_checkpoint(module(), adapter=adapter).sha256
    with torch.no_grad():
        changed = module()
        next(changed.parameters()).add_(1e-3)
    assert found.sha256 != load_checkpoint(changed, adapter=adapter).sha256


def test_the_module_itself_is_left_as_it_is() -> None:
    module = load_classifier().double().train()
    load_checkpoint(module, adapter=CLASSIFIER)
    assert module.training
    assert next(module.parameters()).dtype == torch.float64


def swapped(model: Any, inputs: Any) -> Any:
    logits, caches = alibi_step(model, inputs)
    return logits, [(values, keys) for keys, values in caches]


def behind(model: Any, inputs: Any) -> Any:
    logits, caches = alibi_step(model, inputs)
    new = inputs.ids.shape[1]
    return logits, [tuple(torch.roll(each, new, 2) for each in pair) for pair in caches]


def blind(model: Any, inputs: Any) -> Any:
    return alibi_step(model, inputs._replace(seen=torch.ones_like(inputs.seen)))


def unpadded(model: Any, inputs: Any) -> Any:
    size = inputs.seen.shape[-1]
    own = torch.arange(size)[None, :] <= torch.arange(size - inputs.ids.shape[1], size)[:, None]
    return alibi_step(model, inputs._replace(seen=own[None, None]))


def restarted(model: Any, inputs: Any) -> Any:
    """Positions that begin at 0 in each step, as where a cache was added and they were forgotten."""
    places = torch.arange(inputs.ids.shape[1])[None].expand_as(inputs.ids)
    logits, caches = alibi_step(model, inputs)
    return logits + places[:, :, None], caches


def random(model: Any, inputs: Any) -> Any:
    logits, caches = alibi_step(model, inputs)
    return nn.functional.dropout(logits, 0.5), caches


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (swapped, "the key of layer 0 does not begin with what was kept of it"),
        (behind, "the key of layer 0 does not begin with what was kept of it"),
        (blind, "a token see those after it"),
        (unpadded, "a prompt other logits behind padding"),
        (restarted, "other logits over a cache of 3 tokens than at once"),
        (random, "other values each time"),
    ],
)
def test_a_step_that_computes_wrongly_is_named(step: Step, told: str) -> None:
    message = wrong(ParityError, load_alibi(), causal(step))
    assert told in message
    assert "wrong before it is exported" in message


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda m, i: alibi_step(m, i)[0], "step must give logits and the caches, got a Tensor"),
        (lambda m, i: (alibi_step(m, i)[0], []), "step must give a pair of tensors for each of 1 layers"),
        (lambda m, i: (alibi_step(m, i)[0], None), "step must give a pair of tensors for each of 1 layers"),
        (lambda m, i: (alibi_step(m, i)[0][:, -1], alibi_step(m, i)[1]), "step must give logits of shape (3, 6, 30)"),
        (
            lambda m, i: (alibi_step(m, i)[0], i.past),
            "step gives keys of layer 0 of (B, 2, 0, 8), the adapter says (B, 2, 4, 8)",
        ),
        (
            lambda m, i: (alibi_step(m, i)[0], [(alibi_step(m, i)[1][0][0].half(),) * 2]),
            "step gives keys of layer 0 in torch.float16, the weights are in torch.float32",
        ),
        (lambda m, i: (alibi_step(m, i)[0].half(), alibi_step(m, i)[1]), "got torch.float16"),
        (lambda m, i: (alibi_step(m, i)[0] / 0, alibi_step(m, i)[1]), "NaN or infinity"),
        (lambda m, i: m.no_such_part, "AttributeError: 'Alibi' object has no attribute 'no_such_part' (test_sound.py"),
        (lambda m, i: m.words(i.positions + WORDS), "IndexError"),
    ],
)
def test_a_step_that_breaks_the_protocol_is_told_what_was_expected(step: Step, told: str) -> None:
    assert told in wrong(CheckpointError, load_alibi(), causal(step))


@pytest.mark.parametrize(
    ("cache", "told"),
    [
        (adapters.Cache(1, 8), "keys of layer 0 of (B, 2, {n}, 8), the adapter says (B, 1, {n}, 8)"),
        (adapters.Cache(2, 4), "keys of layer 0 of (B, 2, {n}, 8), the adapter says (B, 2, {n}, 4)"),
        (adapters.Cache(2, 8, value_size=5), "values of layer 0 of (B, 2, {n}, 8), the adapter says (B, 2, {n}, 5)"),
    ],
)
@pytest.mark.parametrize("function", ["step", "project"])
def test_caches_other_than_promised_are_told_with_both_shapes(function: str, cache: Any, told: str) -> None:
    """A step that keeps keys and values in any case, so that nothing in it fails before they are looked at."""

    def step(model: Any, inputs: Any) -> Any:
        new = torch.zeros(len(inputs.ids), HEADS, inputs.seen.shape[-1], SIZE // HEADS, dtype=model.words.weight.dtype)
        return model.words(inputs.ids) @ model.words.weight.T, [(new, new)]

    caches = {"step": [CACHE], "project": [CACHE], function: [cache]}
    adapter = adapters.seq2seq(
        source=SOURCE,
        target=TARGET,
        width=SIZE,
        caches=caches["step"],
        source_caches=caches["project"],
        encode=lambda model, ids, mask: model.words(ids),
        project=lambda model, states: [(split(states), split(states))],
        step=step,
    )
    length = "S" if function == "project" else "P + T"
    assert wrong(CheckpointError, seeded(Tagger), adapter) == f"{function} gives {told.format(n=length)}"


@pytest.mark.parametrize(
    ("encode", "told"),
    [
        (lambda m, ids, mask: m.words(ids)[:, 0], "encode gives states of (2, 16), the adapter says (B, S, 16)"),
        (lambda m, ids, mask: m.words(ids)[..., :9], "encode gives states of (B, S, 9), the adapter says (B, S, 16)"),
        (lambda m, ids, mask: m.words(ids)[:, 1:], "encode gives states of (B, 3, 16), the adapter says (B, 4, 16)"),
        (lambda m, ids, mask: {"states": m.words(ids)}, "encode must give states as a tensor, got a dict"),
    ],
)
def test_states_other_than_promised_are_told_with_both_shapes(encode: Any, told: str) -> None:
    adapter = adapters.seq2seq(
        source=SOURCE,
        target=TARGET,
        width=SIZE,
        encode=encode,
        step=lambda model, inputs: model.words(inputs.ids) @ model.words.weight.T,
    )
    assert wrong(CheckpointError, seeded(Tagger), adapter) == told


def test_logits_of_the_last_token_alone_are_told_where_there_are_no_caches() -> None:
    adapter = adapters.causal(
        tokens=TOKENS, width=SIZE, step=lambda model, inputs: (model.words(inputs.ids) @ model.words.weight.T)[:, -1]
    )
    told = wrong(CheckpointError, seeded(Tagger), adapter)
    assert told == "step gives logits of (2, 30), the adapter says (B, P + T, 30)"


def test_a_source_whose_padding_counts_is_named_in_either_function() -> None:
    def encode(model: Any, ids: Tensor, mask: Tensor) -> Any:
        return tutorial_encode(model, ids, torch.ones_like(mask))

    def step(model: Any, inputs: Any) -> Any:
        return tutorial_step(model, inputs._replace(source_seen=torch.ones_like(inputs.source_seen)))

    adapter = dataclasses.replace(TUTORIAL, encode=encode)
    assert "encode gives a row other states beside longer ones" in wrong(ParityError, load_tutorial(), adapter)
    adapter = dataclasses.replace(TUTORIAL, step=step)
    assert "step gives a row other logits beside longer sources" in wrong(ParityError, load_tutorial(), adapter)


@pytest.mark.parametrize(
    ("encode", "error", "told"),
    [
        (
            lambda m, ids, mask: attend(m, m.words(ids), mask.any()[None]),
            ParityError,
            "other last_hid",
        ),
        (lambda m, ids, mask: {"hidden": m.words(ids)}, CheckpointError, "encode gives hidden, expected last_hidden"),
        (lambda m, ids, mask: m.words(ids)[:, 0], CheckpointError, "last_hidden_state of shape (3, 7, 16)"),
        (lambda m, ids, mask: (m.words(ids), m.words(ids)), CheckpointError, "encode must give 1 outputs, got 2"),
        (lambda m, ids, mask: "states", CheckpointError, "last_hidden_state as a tensor, got a str"),
        (lambda m, ids, mask: m.words(ids[:, :5]), CheckpointError, "of shape (3, 7, 16), got (3, 5, 16)"),
    ],
)
def test_an_encoder_that_is_wrong_is_named(encode: Any, error: type[TxportError], told: str) -> None:
    assert told in wrong(error, seeded(Tagger), encoder_of(encode))


def test_what_a_longest_sequence_meets_is_told_with_its_line() -> None:
    table = torch.zeros(LONGEST - 4, 16)
    adapter = encoder_of(lambda model, ids, mask: model.words(ids) + table[torch.arange(ids.shape[1])])
    assert "encode of Tagger fails in torch.float64: IndexError" in wrong(CheckpointError, seeded(Tagger), adapter)


def test_code_that_asks_for_float32_computes_in_float64_all_the_same() -> None:
    def encode(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        x = model.words(ids).float() + torch.ones(1, dtype=torch.float32) @ torch.zeros(1, 16)
        return (model.mix(x) / 3).to(torch.float32)

    found = load_checkpoint(seeded(Tagger), adapter=encoder_of(encode))
    assert found.model.fp32_only == ""
    exact = found.model
    assert isinstance(exact, Adapted)
    states = exact.double().infer(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2).bool())[0]
    assert states.dtype == torch.float64
    assert not torch.equal(states, states.float().double())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: adapters.causal(tokens=7, width=16, step=alibi_step), "must be Tokens"),  # type: ignore[arg-type]
        (lambda: adapters.causal(tokens=tokens(longest=4), width=16, step=alibi_step), "8 or more, got 4"),
        (lambda: adapters.causal(tokens=tokens(), width=0, step=alibi_step), "width must be a whole number"),
        (lambda: adapters.causal(tokens=tokens(), width=4, step=None), "step of an adapter must be"),  # type: ignore[arg-type]
        (lambda: adapters.causal(tokens=tokens(), width=4, step=alibi_step, caches=[2]), "must be a Cache"),  # type: ignore[list-item]
        (lambda: adapters.causal(tokens=tokens(size=1 << 22), width=4, step=alibi_step), "needs caches"),
        (lambda: adapters.encoder(tokens=tokens(), width=4, encode=alibi_step, outputs={"logits": (3,)}), "labels"),
        (lambda: adapters.encoder(tokens=tokens(), width=4, encode=alibi_step, outputs="x"), "dims by name"),  # type: ignore[arg-type]
        (lambda: labelled(("a", "b"), "relu"), "must be one of softmax, sigmoid, none, got 'relu'"),
        (lambda: labelled(("a",), "softmax"), "of a single label can't be softmax, which is always 1"),
        (lambda: labelled(("a", "b"), "none", "length"), "of labels of tokens must be softmax or sigmoid, got 'none'"),
        (
            lambda: adapters.encoder(tokens=tokens(), width=4, encode=alibi_step, function_to_apply="none"),
            "with labels",
        ),
        (lambda: seq2seq(target=tokens()), "a target needs a start token and an end token"),
        (lambda: seq2seq(project=alibi_step), "give both or none"),
        (lambda: seq2seq(project=alibi_step, source_caches=[adapters.Cache(1, 1)]), "is for a step with caches"),
        (lambda: seq2seq(caches=[CACHE], project=alibi_step, source_caches=[CACHE] * 2), "as many layers, got 1 and 2"),
    ],
)
def test_facts_that_do_not_go_together_are_refused(make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


@pytest.mark.parametrize(
    ("labels", "given", "function"),
    [
        (("a", "b"), None, "softmax"),
        (("a",), None, "sigmoid"),
        (("a", "b"), "sigmoid", "sigmoid"),
        (("a",), "none", "none"),
    ],
)
def test_an_adapter_says_how_scores_are_made_of_logits(labels: tuple[str, ...], given: Any, function: str) -> None:
    assert labelled(labels, given).facts.function_to_apply == function


def labelled(labels: tuple[str, ...], function: Any, *length: str) -> adapters.Adapter:
    outputs = {"logits": (*length, len(labels))}
    how: dict[str, Any] = {"outputs": outputs, "labels": labels, "function_to_apply": function}
    return adapters.encoder(tokens=tokens(), width=4, encode=alibi_step, **how)


def tokens(**changes: Any) -> adapters.Tokens:
    return adapters.Tokens(**{"size": 30, "longest": 16, "pad": 0, **changes})


def seq2seq(**changes: Any) -> adapters.Adapter:
    how: dict[str, Any] = {"target": tokens(start=1, ends=(2,)), "encode": alibi_step, "step": alibi_step, **changes}
    return adapters.seq2seq(source=tokens(), width=16, **how)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (nn.ReLU(), "has no floating-point parameters"),
        (nn.Linear(2, 2, device="meta"), "without values, on the meta device"),
    ],
)
def test_a_module_without_weights_is_refused(module: nn.Module, told: str) -> None:
    assert told in wrong(CheckpointError, module, ALIBI)


def test_a_module_whose_weights_are_no_numbers_is_refused() -> None:
    module = load_alibi()
    with torch.no_grad():
        module.get_parameter("mix.bias")[0] = torch.nan
    assert "mix.bias holds NaN or infinity" in wrong(CheckpointError, module, ALIBI)


def test_a_module_and_its_adapter_belong_together() -> None:
    assert "a module needs an adapter" in wrong(UnsupportedError, load_alibi(), None)  # type: ignore[arg-type]
    assert "must be one of txport.adapters" in wrong(UnsupportedError, load_alibi(), 7)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="an adapter is for a module, got 'g2p-en'"):
        load_checkpoint("g2p-en", adapter=ALIBI)
    with pytest.raises(UnsupportedError, match="an adapter is for a torch"):
        load_checkpoint(7, adapter=ALIBI)  # type: ignore[arg-type]
