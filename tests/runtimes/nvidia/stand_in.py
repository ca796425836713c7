"""CUDA's libraries in a few lines of C, which compute nothing: with them, ONNX Runtime's own CUDA provider starts.

It registers its kernels, takes nodes, fuses them and checks shapes, as with a GPU; only the numbers are wrong. So what
it takes, and how its errors read, is seen on any machine. The environment chooses faults: CUDA_FAULT is the number that
CUDA answers when a device is chosen, CUDA_FULL a memory that is at its end, CUDA_DRIVER the newest CUDA of the driver.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import onnxruntime

PROVIDER = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
LIBRARIES = {  # name -> what its functions begin with; the first that fits
    "libcublasLt.so.13": "cublasLt",
    "libcublas.so.13": "cublas",
    "libcurand.so.10": "curand",
    "libcudart.so.13": "(__)?cuda",
    "libcuda.so.1": "cu",
    "libcudnn.so.9": "cudnn",
}
CODE = {
    "cudaSetDevice": "int cudaSetDevice(int d) { return fault(); }",
    "cudaGetDevice": "int cudaGetDevice(int *d) { *d = 0; return 0; }",
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *n) { *n = !fault(); return fault(); }",
    "cudaMemGetInfo": "int cudaMemGetInfo(size_t *f, size_t *t) { *f = *t = (size_t)16 << 30; return 0; }",
    "cudaMalloc": 'int cudaMalloc(void **p, size_t n) { return getenv("CUDA_FULL") ? 2 : take(p, n); }',
    "cudaMallocHost": "int cudaMallocHost(void **p, size_t n) { return take(p, n); }",
    "cudaHostAlloc": "int cudaHostAlloc(void **p, size_t n, unsigned f) { return take(p, n); }",
    "cudaFree": "int cudaFree(void *p) { free(p); return 0; }",
    "cudaFreeHost": "int cudaFreeHost(void *p) { free(p); return 0; }",
    "cudaMemcpy": "int cudaMemcpy(void *d, const void *s, size_t n, int k) { memmove(d, s, n); return 0; }",
    "cudaMemcpyAsync": "int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *q)"
    " { memmove(d, s, n); return 0; }",
    "cudaMemset": "int cudaMemset(void *d, int v, size_t n) { memset(d, v, n); return 0; }",
    "cudaMemsetAsync": "int cudaMemsetAsync(void *d, int v, size_t n, void *q) { memset(d, v, n); return 0; }",
    "cudaStreamCreateWithFlags": "int cudaStreamCreateWithFlags(void **s, unsigned f) { return take(s, 8); }",
    "cudaStreamIsCapturing": "int cudaStreamIsCapturing(void *s, int *c) { *c = 0; return 0; }",
    "cudaEventCreateWithFlags": "int cudaEventCreateWithFlags(void **e, unsigned f) { return take(e, 8); }",
    "cudaGetErrorName": 'const char *cudaGetErrorName(int e) { return "an error"; }',
    "cudaGetErrorString": "const char *cudaGetErrorString(int e) {"
    ' return e == 2 ? "out of memory" : e == 35 ? "CUDA driver version is insufficient for CUDA runtime version"'
    ' : e == 100 ? "no CUDA-capable device is detected" : "unknown error"; }',
    # major and minor stand at these places of cudaDeviceProp in CUDA 13, the count of processors before them
    "cudaGetDeviceProperties": 'int cudaGetDeviceProperties(char *p, int d) { strcpy(p, "Stand-in");'
    " *(size_t *)(p + 288) = (size_t)16 << 30; *(size_t *)(p + 296) = 49152; *(int *)(p + 304) = 65536;"
    " *(int *)(p + 308) = 32; *(int *)(p + 320) = 1024; *(int *)(p + 360) = 8; *(int *)(p + 364) = 0;"
    " *(int *)(p + 384) = *(int *)(p + 388) = 108; return 0; }",
    "cudaDeviceGetAttribute": "int cudaDeviceGetAttribute(int *v, int a, int d)"
    " { *v = a == 75 ? 8 : a == 76 ? 0 : a == 16 ? 108 : 1024; return 0; }",
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *v) { *v = 13000; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }",
    "__cudaRegisterFatBinary": "void **__cudaRegisterFatBinary(void *f) { static void *x[4]; return x; }",
    "cublasCreate_v2": "int cublasCreate_v2(void **h) { return take(h, 8); }",
    "cublasLtCreate": "int cublasLtCreate(void **h) { return take(h, 8); }",
    "cublasGetStatusString": 'const char *cublasGetStatusString(int e) { return "a status"; }',
    "cuInit": "int cuInit(unsigned f) { return 0; }",
    "cuDriverGetVersion": "int cuDriverGetVersion(int *v)"
    ' { const char *d = getenv("CUDA_DRIVER"); *v = d ? atoi(d) : 13000; return 0; }',
    "cuDeviceGetCount": "int cuDeviceGetCount(int *n) { *n = 1; return 0; }",
    "cuDeviceGet": "int cuDeviceGet(int *d, int index) { *d = index + 5; return 0; }",
    "cuDeviceGetName": "int cuDeviceGetName(char *n, int size, int d)"
    ' { strncpy(n, d == 5 ? "Stand-in" : "?", size); return 0; }',
    "cuDeviceGetAttribute": "int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 8 : 0; return 0; }",
    "cuDeviceTotalMem_v2": "int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)16 << 30; return 0; }",
    "cuDeviceGetPCIBusId": "int cuDeviceGetPCIBusId(char *b, int n, int d)"
    ' { strncpy(b, "0000:65:00.0", n); return 0; }',
    "cudnnGetVersion": "size_t cudnnGetVersion(void) { return 91002; }",
    "cudnnCreate": "int cudnnCreate(void **h) { return take(h, 8); }",
    "cudnnDestroy": "int cudnnDestroy(void *h) { free(h); return 0; }",
    "cudnnSetStream": "int cudnnSetStream(void *h, void *s) { return 0; }",
    "cudnnGetErrorString": 'const char *cudnnGetErrorString(int e) { return "CUDNN_STATUS"; }',
}
HEAD = """
#include <stdlib.h>
#include <string.h>
static int fault(void) { const char *f = getenv("CUDA_FAULT"); return f ? atoi(f) : 0; }
static int take(void **p, size_t n) { *p = aligned_alloc(256, (n + 255) / 256 * 256 + 256); return *p == 0; }
"""


def can_build() -> bool:
    """Whether there is what it takes: a compiler, nm, and a provider of this CUDA, without the real libraries."""
    is_13 = str(getattr(onnxruntime, "cuda_version", "")).startswith("13.")
    has_real = (PROVIDER.parents[2] / "nvidia").exists()
    return bool(shutil.which("cc") and shutil.which("nm") and PROVIDER.exists() and is_13 and not has_real)


def build(folder: Path) -> None:
    """Write the libraries to a folder, each with the functions that the provider asks of it."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", PROVIDER], capture_output=True, text=True, check=True)
    names = {line.split()[1].partition("@")[0] for line in listed.stdout.splitlines()}
    wanted = sorted({name for name in names if re.match("cu|__cuda", name)} | set(CODE))
    for library in LIBRARIES:
        mine = [name for name in wanted if _library_of(name) == library]
        functions = "\n".join(CODE.get(name, f"long {name}() {{ return 0; }}") for name in mine)
        versions = folder / "versions.map"
        versions.write_text(f"{library} {{ global: *; }};\n")  # the provider asks for functions of this version
        command = ["cc", "-w", "-O0", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-x", "c", "-"]
        command += [f"-Wl,--version-script={versions}", "-o", str(folder / library)]
        subprocess.run(command, input=HEAD + functions + "\n", text=True, check=True)


def _library_of(name: str) -> str | None:
    if name.startswith("cudnn"):
        return "libcudnn.so.9"
    return next((library for library, begin in LIBRARIES.items() if re.match(begin, name)), None)
