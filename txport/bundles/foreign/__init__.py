"""Folders of ONNX graphs exported by other tools: Hugging Face Optimum and the converter of transformers.js."""
