"""txport's cpu bundles beside CTranslate2, Hugging Face Optimum and PyTorch, on the same machine.

The same weights in each engine's own format, the same token ids, the same number of generated tokens and the
same cores; each engine at its own best threads, workers and backend, in a process of its own. Their rounds
alternate, and the process that does not work is held. Every round begins with a batch untimed.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # Optimum imports ONNX Runtime by itself
