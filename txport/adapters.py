"""What adapts a PyTorch module of your own, which no architecture expresses; docs/adapters.md has a whole example."""

from __future__ import annotations

from txport.models.adapters.adapter import Adapter, Cache, StepInputs, causal, encoder, seq2seq
from txport.models.facts import Tokens

__all__ = ["Adapter", "Cache", "StepInputs", "Tokens", "causal", "encoder", "seq2seq"]
