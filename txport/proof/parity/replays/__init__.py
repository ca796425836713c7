"""Reference calls of the graphs of a target."""
