"""ONNX Runtime: its providers and sessions, and the drivers of the targets' graphs."""
