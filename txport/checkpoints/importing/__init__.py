"""Import of checkpoints of other programs: a table of all tensors, and drafts of rules for unknown weights."""
