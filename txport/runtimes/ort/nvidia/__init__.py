"""NVIDIA GPUs: installed and missing software, options of ONNX Runtime's providers, and their errors."""
