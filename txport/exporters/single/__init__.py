"""The single graph: encoder, decoder and search in one file, for programs without a search loop."""
