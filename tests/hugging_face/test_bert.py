"""Our encoder computes what BERT, RoBERTa and DistilBERT of Hugging Face's compute, by nothing but a table of names."""

from __future__ import annotations

import pytest
import torch

from tests.hugging_face.bert import FAMILIES, draw, our_config, our_weights, outputs, seeded
from txport.models.architectures.bert import Bert, BertConfig

NEAR = 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_are_hugging_faces(name: str) -> None:
    theirs, ids, mask = seeded(name), *draw(1)
    config = our_config(name)
    assert config.pop("architecture") == "bert"
    ours = Bert(BertConfig.from_dict(config)).eval()
    weights = our_weights(theirs)
    assert set(weights) == {each for each, _ in ours.named_parameters()}
    ours.load_state_dict(weights, strict=False)
    expected = outputs(theirs, ids, mask)
    with torch.inference_mode():
        found = dict(zip((each.name for each in ours.facts.outputs), ours.infer(ids, mask), strict=True))
    assert set(found) == set(expected)
    for output in ours.facts.outputs:
        kept = mask if output.is_of_tokens else slice(None)
        torch.testing.assert_close(found[output.name][kept], expected[output.name][kept], atol=NEAR, rtol=0)
