"""Folders of ONNX graphs that others exported: Hugging Face Optimum, and transformers.js's converter."""
