"""What may be wrong with a part of a graph, each guess tried on the figures."""
