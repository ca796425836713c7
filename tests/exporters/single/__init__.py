"""The graph that searches by itself."""
