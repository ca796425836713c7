"""Models of Marian: a `.npz` with tensors and options, next to vocabularies."""
