"""Architectures, one file each; the file's name is the architecture's (docs/architectures.md: how to add one)."""
