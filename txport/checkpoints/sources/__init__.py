"""Checkpoint formats: each is a module here with a `FORMAT`, which recognises a folder and reads it."""
