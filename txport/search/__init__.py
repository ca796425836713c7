"""Generation: greedy search, sampling and beam search over the `Runtime` interface, with NumPy only."""
