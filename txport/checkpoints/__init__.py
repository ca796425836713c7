"""Checkpoints: from a folder to the tensors of a model."""
