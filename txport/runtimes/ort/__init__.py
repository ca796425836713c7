"""ONNX Runtime: its providers and sessions, and what drives the graphs of each target."""
