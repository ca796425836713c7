"""Adapters for PyTorch modules that match no supported architecture; see docs/adapters.md for a complete example."""

from __future__ import annotations

from txport.checkpoints.adapters.adapter import Adapter, Cache, StepInputs, causal, encoder, seq2seq
from txport.models.facts import Tokens

__all__ = ["Adapter", "Cache", "StepInputs", "Tokens", "causal", "encoder", "seq2seq"]
