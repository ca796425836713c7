"""Families of published checkpoints, one file each: reading of `config.json`, and names of tensors."""
