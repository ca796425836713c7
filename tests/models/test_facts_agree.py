"""Facts of which each is possible, but not beside the others, are refused before anything relies on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txport.models.facts import INPUTS, LENGTH, CrossAttention, Facts, Output, StateTensor, Tokens, by_layer, key_values
from txport.targets import TARGETS

SIDE = Tokens(size=11, longest=7, pad=0, start=1, ends=(2,))
OWN = key_values(2, "row", 3, 8)
SHARED = key_values(2, "source", 3, 8)
SEQ2SEQ = Facts(task="seq2seq", width=24, source=SIDE, target=SIDE, state=by_layer(OWN, SHARED))
CAUSAL = Facts(task="causal", width=24, target=SIDE, state=OWN)
HIDDEN = Output("last_hidden_state", (LENGTH, 24))
ENCODE = Facts(task="encode", width=24, source=SIDE, outputs=(HIDDEN,))
HUGE = StateTensor(0, "key", "row", (1 << 30, LENGTH, 1 << 30))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(CAUSAL, state=OWN[1:]), "each layer from 0 on must have one key and one value of a row"),
        (replace(CAUSAL, state=OWN[2:]), "each layer from 0 on must have one key and one value of a row"),
        (replace(CAUSAL, state=(*OWN, replace(OWN[0], dims=(1, LENGTH, 8)))), "one key and one value of a row"),
        (replace(CAUSAL, state=(OWN[0], replace(OWN[1], role="key", dims=(1, LENGTH, 8)))), "one key and one value"),
        (replace(SEQ2SEQ, state=(*OWN, *SHARED[:-1])), "one key and one value of a source"),
        (replace(SEQ2SEQ, attention=CrossAttention(2, 3)), "attention.layer must be a layer of the state .*, got 2"),
        (replace(CAUSAL, state=(HUGE, *OWN[1:])), "at most 2147483648 numbers for each token"),
        (
            replace(CAUSAL, target=replace(SIDE, longest=1)),
            "target.longest of a causal model must be 2 or more, .* 1",
        ),
        (replace(ENCODE, outputs=(HIDDEN, Output("input_ids", (4,)))), "an output can't be called input_ids"),
        (replace(ENCODE, outputs=(HIDDEN, Output("source_lengths", (4,)))), "an output can't be called source_len"),
    ],
)
def test_facts_that_do_not_go_together_are_refused(facts: Facts, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Facts.from_dict(facts.to_dict())


@pytest.mark.parametrize("facts", [SEQ2SEQ, replace(SEQ2SEQ, attention=CrossAttention(1, 3)), CAUSAL, ENCODE])
def test_facts_that_go_together_are_taken(facts: Facts) -> None:
    assert Facts.from_dict(facts.to_dict()) == facts


def test_the_names_that_outputs_can_t_have_are_those_of_all_inputs() -> None:
    for target in TARGETS.values():
        for graph in target.contracts["encode"](ENCODE, "float32"):
            assert {port.name for port in graph.inputs} <= set(INPUTS)
