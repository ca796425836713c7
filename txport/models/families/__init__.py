"""Families of published checkpoints, a file each: how their `config.json` reads, and what their tensors are called."""
