"""Tokenizers of other trainers' checkpoints: their vocabularies give ids, files beside them cut words."""
