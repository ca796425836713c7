"""Code shared by the targets with ONNX Runtime's fused operators: counting, packing, quantising and writing."""
