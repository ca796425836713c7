"""What the targets of ONNX Runtime's fused operators have in common: how parts are counted, packed and written."""
