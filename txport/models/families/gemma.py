"""Gemma, a Llama whose norms multiply by 1 + weight, as transformers' `GemmaForCausalLM` saves it."""

from __future__ import annotations

from txport.models.families.llama import CLASSES, GEMMA, WEIGHTS, config
from txport.models.family import Family
from txport.models.weights import Shift

FAMILY = Family(
    types=(GEMMA,),
    architecture="llama",
    classes=CLASSES,
    config=config,
    weights=(*WEIGHTS, Shift(r"norm\.weight$", 1.0)),
)
