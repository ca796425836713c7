"""Tokenizers of other trainers' checkpoints: their vocabularies have the ids, files next to them split words."""
