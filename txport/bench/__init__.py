"""Measurements of speed: a bundle beside PyTorch, rounds, and the memory's bandwidth."""
