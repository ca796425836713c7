"""Print what txport and extras of it need, with the wheel of ONNX Runtime that has no code for GPUs.

python requirements.py PYPROJECT EXTRA...
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

if __name__ == "__main__":
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    extras = [each for name in sys.argv[2:] for each in project["optional-dependencies"][name]]
    needed = [each for each in project["dependencies"] + extras if not each.startswith("onnxruntime-gpu")]
    print(*(each.partition(";")[0] for each in needed), sep="\n")
