"""The cuda target: ONNX Runtime's operators for NVIDIA GPUs, a step that one CUDA graph holds."""
