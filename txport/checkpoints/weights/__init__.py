"""The weights of a checkpoint: rules for names and layouts, the resulting shapes, and reading one tensor at a time."""
