"""What the graphs of a target are fed, call by call."""
