/** ONNX Runtime on this platform: which build, on what it runs, and what it lacks. */

import { UnavailableError, UnsupportedError, quoted } from "./errors.js";
import { IN_NODE, importRuntime } from "./files.js";

// A module of one function that adds two vectors: it is valid only where there is SIMD.
const SIMD = Uint8Array.of(
  ...[0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0],
  ...[65, 0, 253, 15, 65, 0, 253, 15, 253, 174, 1, 11],
);
/** The threads that each onnxruntime-web was started with; 0: as many as it took. @type {WeakMap<object, number>} */
const THREADS = new WeakMap();
const ISOLATION = "Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp";

/**
 * @typedef {object} Platform
 * @property {any} ort the module of ONNX Runtime
 * @property {boolean} isWeb whether it is onnxruntime-web
 * @property {import("./index.js").Provider} provider
 * @property {number | undefined} threads undefined: as many as ONNX Runtime takes
 * @property {string[]} notes what is slower here than it could be, and why
 */

/**
 * The build of ONNX Runtime that is given or found, and what was asked of it.
 *
 * @param {import("./index.js").LoadOptions} options
 * @param {string} precision of the bundle
 * @returns {Promise<Platform>}
 */
export async function platformOf(options, precision) {
  const ort = moduleOf(options.ort ?? (await importRuntime()));
  const isWeb = Boolean(ort.env?.versions?.web);
  const { threads, provider = isWeb ? "wasm" : "cpu" } = options;
  const providers = isWeb ? ["wasm", "webgpu"] : ["cpu"];
  if (!providers.includes(provider)) {
    const build = isWeb ? "onnxruntime-web" : "onnxruntime-node";
    throw new UnsupportedError(`${build} runs on ${providers.join(" or ")} here, not on ${quoted(provider)}`);
  }
  if (threads !== undefined && (!Number.isInteger(threads) || threads < 1)) {
    throw new UnsupportedError(`threads must be a whole number from 1 on, got ${quoted(threads)}`);
  }
  const platform = { ort, isWeb, provider, threads, notes: /** @type {string[]} */ ([]) };
  if (isWeb) requireWasm(platform);
  if (provider === "webgpu") await requireGpu(precision);
  return platform;
}

/** @param {any} found */
function moduleOf(found) {
  const ort = found?.InferenceSession ? found : found?.default;
  if (!ort?.InferenceSession?.create || !ort.Tensor) {
    throw new UnsupportedError(
      "ort must be the module of onnxruntime-node or onnxruntime-web, with InferenceSession and Tensor",
    );
  }
  return ort;
}

/** WebAssembly with SIMD; threads only where the page may share memory. @param {Platform} platform */
function requireWasm(platform) {
  if (typeof WebAssembly !== "object") {
    throw new UnavailableError("this browser has no WebAssembly, which ONNX Runtime needs; use a newer browser");
  }
  if (!WebAssembly.validate(SIMD)) {
    throw new UnavailableError("this browser's WebAssembly has no SIMD, which ONNX Runtime needs; use a newer browser");
  }
  const wasm = platform.ort.env.wasm;
  const why = threadless();
  if (why !== null) {
    if ((platform.threads ?? 1) > 1) {
      throw new UnavailableError(`${platform.threads} threads need ${why}; leave threads out for one`);
    }
    platform.threads = 1;
    platform.notes.push(`one thread: more need ${why}`);
  }
  const begun = THREADS.get(wasm); // it takes the number when it starts, with the first model
  if (begun !== undefined && platform.threads !== undefined && platform.threads !== begun) {
    const now = `runs with ${begun || "a number of its own"} since its first model`;
    throw new UnsupportedError(`onnxruntime-web ${now}: threads can't become ${platform.threads}; leave threads out`);
  }
  if (begun === undefined) THREADS.set(wasm, platform.threads ?? 0);
  if (platform.threads !== undefined) wasm.numThreads = platform.threads;
}

/** What threads lack here, if they lack anything. @returns {string | null} */
function threadless() {
  if (typeof SharedArrayBuffer === "undefined" || (!IN_NODE && globalThis.crossOriginIsolated !== true)) {
    return `a page with the headers ${ISOLATION}`;
  }
  return null;
}

/** @param {string} precision */
async function requireGpu(precision) {
  const gpu = /** @type {any} */ (globalThis.navigator)?.gpu;
  if (gpu === undefined) throw new UnavailableError('this browser has no WebGPU here; use provider "wasm"');
  const adapter = await gpu.requestAdapter();
  if (adapter === null) {
    throw new UnavailableError('this browser finds no graphics processor for WebGPU; use provider "wasm"');
  }
  if (precision === "fp16" && !adapter.features.has("shader-f16")) {
    throw new UnavailableError(
      "this graphics processor has no half precision (shader-f16); export with `--precision fp32`",
    );
  }
}
