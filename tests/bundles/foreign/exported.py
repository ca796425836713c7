"""What runs where Optimum is: `python -m tests.bundles.foreign.exported FOLDER` writes what Optimum exports.

Of small models in tests/recorded/families, in each layout that Optimum has for them: `FOLDER/NAME/LAYOUT`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.recorded import FAMILIES

SEQ2SEQ, SPEECH, CAUSAL = "text2text-generation", "automatic-speech-recognition", "text-generation"
APART: dict[str, Any] = {"no_post_process": True}  # a decoder for the first step, and one for those after it
NAMES = {"t5": SEQ2SEQ, "whisper": SPEECH, "gpt2": CAUSAL, "bert": "feature-extraction"}  # folder -> task
FRAMES = {"nb_max_frames": 40}  # of the small model
QUANTISED = ("t5", "gpt2", "bert")


def layouts(task: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Layout -> task of Optimum, and how its result is finished."""
    if task in (SEQ2SEQ, SPEECH):
        return {"whole": (task, {}), "merged": (f"{task}-with-past", {}), "apart": (f"{task}-with-past", APART)}
    if task == CAUSAL:
        return {"whole": (task, {}), "one": (f"{task}-with-past", {})}
    return {"encode": (task, {})}


def quantise(folder: Path) -> None:
    """Add a variant in 8 bits beside each graph."""
    from onnxruntime.quantization import quantize_dynamic

    for file in sorted(folder.glob("*.onnx")):
        quantize_dynamic(file, file.with_name(f"{file.stem}_quantized.onnx"), extra_options={"EnableSubgraph": True})


def main(out: Path) -> None:
    from optimum.exporters.onnx import main_export

    for name, kind in NAMES.items():
        for layout, (task, how) in layouts(kind).items():
            folder = out / name / layout
            frames = FRAMES if task.startswith(SPEECH) else {}
            main_export(str(FAMILIES / name), folder, task=task, do_validation=False, **how, **frames)
            if name in QUANTISED:
                quantise(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
