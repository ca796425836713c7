"""Gather what the page needs in one folder: the page, the package, ONNX Runtime for browsers, and bundles.

It needs txport with its extra `export`, and the packages of `txport/runtimes/js`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "txport" / "runtimes" / "js"
ENGINE = PACKAGE / "node_modules" / "onnxruntime-web" / "dist"
PAGE = ("index.html", "style.css", "page.js", "picture.js")
WASM = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WEBGPU = ("ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm")
# The folder of each bundle -> its target and precision. A processor runs int8; graphics processors, half precision.
BUNDLES = {"bundle": ("cpu", "int8"), "bundle-webgpu": ("portable", "fp16")}


def main() -> None:
    """Build, and say how to look at the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "build", help="the folder that is made")
    parser.add_argument("--bundle", type=Path, help="a bundle of g2p-en in place of exports; without WebGPU")
    given = parser.parse_args()
    if not ENGINE.is_dir():
        sys.exit(f"{ENGINE} is missing; run `npm ci --ignore-scripts --prefix {PACKAGE}`")
    build(given.out, given.bundle)
    print(f"python -m http.server --directory {given.out}")


def build(out: Path, bundle: Path | None = None) -> None:
    """Write the folder anew; an earlier one stays until the new one is whole."""
    if bundle is None:
        try:
            import txport  # noqa: F401  # a page of a bundle that is there needs no exporter
        except ImportError as error:
            sys.exit(f"{error}; run this with the Python that has txport[export], or give --bundle")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as stage:
        gather(Path(stage, "new"), bundle)
        if out.exists():
            out.rename(Path(stage, "old"))
        Path(stage, "new").rename(out)


def gather(out: Path, bundle: Path | None) -> None:
    """Write all files into a new folder."""
    shutil.copytree(PACKAGE / "src", out / "txport")
    (out / "ort").mkdir()
    for name in PAGE:
        shutil.copy(HERE / name, out)
    for name in WASM if bundle else (*WASM, *WEBGPU):
        shutil.copy(ENGINE / name, out / "ort")
    if bundle is not None:
        shutil.copytree(bundle, out / "bundle")
        return
    import txport

    for name, (target, precision) in BUNDLES.items():
        txport.export("g2p-en", out / name, target=target, precision=precision)


if __name__ == "__main__":
    main()
