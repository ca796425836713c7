"""The weights of a checkpoint: rules for their names and layouts, what these make of shapes, one tensor at a time."""
