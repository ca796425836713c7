"""Checkpoints of other trainers, each computed here as its trainer computes."""
