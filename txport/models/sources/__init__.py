"""Formats of checkpoints: who wrote a folder, and what is made of it. Each is one file here, with a `FORMAT`."""
