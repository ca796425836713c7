"""The cpu target: ONNX Runtime's fused operators, caches written in place, weights in 32, 8 or 4 bits."""
