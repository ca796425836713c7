"""One file for each architecture; its name is that of the file (docs/architectures.md tells how to add one)."""
