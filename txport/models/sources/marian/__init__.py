"""Models of Marian: a `.npz` with tensors and options, and vocabularies beside it."""
