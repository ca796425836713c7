"""The graph that generates: encoder, decoder and search in one file, for programs that have no driver."""
