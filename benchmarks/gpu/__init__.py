"""cuda bundles on an NVIDIA GPU: parity with PyTorch, and speed compared with peers.

Each side runs in a separate process: PyTorch, CTranslate2 and ONNX Runtime include different versions of CUDA's
libraries, a CUDA graph can't be captured while another thread allocates, and a crash of a peer affects only its line.
The processes alternate, round by round, so that clocks and temperature are the same for all. An idle process only uses
memory of the GPU.
"""
