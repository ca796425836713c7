"""Checkpoints of others: what becomes of each tensor, and a draft of the rules where nothing is known of them."""
