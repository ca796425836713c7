"""How the checkpoints that ship were trained; not part of the package that is installed."""
