"""What this processor is, and the instruction sets that its libraries can be told to do without.

Each set is what it adds to the environment of a new process. ONNX Runtime chooses its kernels by the processor alone;
of attention it has two, and a switch.
"""

from __future__ import annotations

from txport.system import machine

SETS: dict[str, dict[str, str]] = {
    "all": {},
    "ATen default": {"ATEN_CPU_CAPABILITY": "default"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "SSE4": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
    "ONNX Runtime without flash attention": {
        "ORT_DISABLE_FLASH_ATTENTION": "1",
        "ORT_GQA_DISABLE_FLASH_ATTENTION": "1",
    },
}


def describe_processor() -> str:
    """Its name, and which of the instruction sets that matter to kernels it has."""
    return f"{machine.describe()['cpu']} ({', '.join(machine.instructions()) or 'no flags known'})"
