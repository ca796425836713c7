"""txport's cpu bundles compared with CTranslate2, Hugging Face Optimum, PyTorch and OpenVINO on the same machine.

All engines use the same weights in their own formats, the same token ids, the same number of generated tokens and the
same cores. Each engine uses its best threads, workers and backend, in a separate process. Rounds alternate, and the
idle process is stopped. Every round begins with an untimed batch.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # Optimum imports ONNX Runtime by itself
