"""NVIDIA's GPUs: what is here and what is missing, how ONNX Runtime's providers are set for them, and their errors."""
