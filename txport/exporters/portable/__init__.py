"""The portable target: standard operators only."""
