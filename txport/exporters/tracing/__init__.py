"""Tracing of a PyTorch module to an ONNX graph: symbols, the forms of PyTorch's functions, and passes."""
