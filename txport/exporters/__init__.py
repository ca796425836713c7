"""From a PyTorch checkpoint to ONNX graphs. Never imports a runtime."""
