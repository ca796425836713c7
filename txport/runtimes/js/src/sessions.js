/** The graphs of a bundle as sessions of ONNX Runtime. */

import { BundleError, RunError, UnsupportedError, brief } from "./errors.js";
import { readChecked, requireSame } from "./files.js";
import { typeOf } from "./manifest.js";
import { contract } from "./ports.js";

/** @typedef {any} Tensor a tensor of ONNX Runtime */
/** @typedef {Record<string, Tensor>} Tensors */

const MISSING = [
  /implementation for ([\w.]+)\(/,
  /([\w.:]+)\(-?\d*\) is not a registered function/,
  /No Op registered for ([\w.]+) with domain_version/,
];
const OWN = /^(present|selected)\.|^last_hidden_state$/; // outputs that stay where they were made

/** The graphs of one bundle on one platform; tensors go in and out by the names of ports. */
export class Sessions {
  /** @type {Map<string, any>} */ #sessions = new Map();
  /** @type {Promise<unknown>} */ #turn = Promise.resolve();

  /** @param {import("./platform.js").Platform} platform @param {import("./index.js").Manifest} manifest */
  constructor(platform, manifest) {
    this.platform = platform;
    this.manifest = manifest;
    this.type = typeOf(manifest);
  }

  /**
   * Open every graph.
   *
   * @param {import("./files.js").Files} files
   * @param {import("./platform.js").Platform} platform
   * @param {import("./index.js").Manifest} manifest
   */
  static async open(files, platform, manifest) {
    const sessions = new Sessions(platform, manifest);
    const roles = Object.keys(contract(manifest));
    const sharing = sharedWeights(files, platform, manifest, roles);
    const graphs = roles.map((role) => readListed(files, manifest, manifest.graphs[role].file)); // all at once
    for (const each of graphs) each.catch(() => {}); // the first that fails is told of, below
    try {
      const shared = await sharing;
      for (const [at, role] of roles.entries()) {
        const session = await create({ files, platform, manifest, role, shared, graph: await graphs[at] });
        sessions.#sessions.set(role, session);
      }
    } catch (error) {
      await sessions.release();
      throw error;
    }
    return sessions;
  }

  /**
   * Run a graph and return the outputs asked for. ONNX Runtime for the web runs one graph at a time, so that calls
   * wait for one another.
   *
   * @param {string} role
   * @param {Tensors} inputs
   * @param {string[]} outputs
   * @returns {Promise<Tensors>}
   */
  async run(role, inputs, outputs) {
    const session = this.#sessions.get(role);
    if (session === undefined) throw new RunError("this model was released");
    const found = this.#turn.then(() => session.run(inputs, outputs));
    this.#turn = found.catch(() => {});
    try {
      return await found;
    } catch (error) {
      throw new RunError(`the ${role} graph does not run: ${brief(error)}; \`txport verify\` looks for the cause`);
    }
  }

  /** @param {ArrayLike<number>} values @param {number[]} dims @returns {Tensor} */
  int64(values, dims) {
    return new this.platform.ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
  }

  /** @param {ArrayLike<number>} values @returns {Tensor} */
  int32(values) {
    return new this.platform.ort.Tensor("int32", Int32Array.from(values), [values.length]);
  }

  /** @param {boolean} value @returns {Tensor} */
  flag(value) {
    return new this.platform.ort.Tensor("bool", Uint8Array.of(Number(value)), [1]);
  }

  /** Zeros of the bundle's type. @param {number[]} dims @returns {Tensor} */
  zeros(dims) {
    const size = dims.reduce((one, other) => one * other, 1);
    const data = this.type === "float16" ? new Uint16Array(size) : new Float32Array(size);
    return new this.platform.ort.Tensor(this.type, data, dims);
  }

  /**
   * The numbers of an output, whose dims must be these.
   *
   * @param {string} name
   * @param {Tensor} tensor
   * @param {number[]} dims
   * @returns {Promise<Float32Array>}
   */
  async numbers(name, tensor, dims) {
    if (tensor?.dims?.join() !== dims.join()) {
      const shapes = `${name} of shape ${tensor?.dims?.join("x")}, expected ${dims.join("x")}`;
      throw new RunError(`a graph gives ${shapes}; the bundle is damaged, and \`txport verify\` says where`);
    }
    const data = await tensor.getData(tensor.location === "gpu-buffer");
    return data instanceof Float32Array ? data : widened(data);
  }

  async release() {
    const sessions = [...this.#sessions.values()];
    this.#sessions.clear();
    await this.#turn;
    for (const session of sessions) await session.release?.();
  }
}

/** Let go of tensors that lie on a graphics processor. @param {Tensor[]} tensors */
export function dispose(tensors) {
  for (const tensor of tensors) if (tensor?.location === "gpu-buffer") tensor.dispose();
}

/**
 * @param {import("./files.js").Files} files
 * @param {import("./index.js").Manifest} manifest
 * @param {string} name
 */
function readListed(files, manifest, name) {
  return readChecked(files, name, manifest.files[name]);
}

/**
 * The files of weights beside the graphs, by the names that graphs call them; without their bytes where ONNX Runtime
 * maps them.
 *
 * @param {import("./files.js").Files} files
 * @param {import("./platform.js").Platform} platform
 * @param {import("./index.js").Manifest} manifest
 * @param {string[]} roles
 */
async function sharedWeights(files, platform, manifest, roles) {
  const measure = platform.isWeb ? undefined : files.measure;
  const graphs = new Set(Object.values(manifest.graphs).map((graph) => graph.file)); // those that nobody runs here too
  const folder = manifest.graphs[roles[0]].file.replace(/[^/]*$/, "");
  const names = Object.keys(manifest.files).filter((name) => name.startsWith(folder) && !graphs.has(name));
  const read = names.map(async (name) => {
    const path = name.slice(folder.length);
    if (measure === undefined) return { path, data: await readListed(files, manifest, name) };
    requireSame(files, name, manifest.files[name], await measure(name));
    return { path };
  });
  return Promise.all(read);
}

/**
 * @typedef {object} Given what a session is made of
 * @property {import("./files.js").Files} files
 * @property {import("./platform.js").Platform} platform
 * @property {import("./index.js").Manifest} manifest
 * @property {string} role
 * @property {{ path: string, data?: Uint8Array }[]} shared
 * @property {Uint8Array} graph
 */

/** @param {Given} given */
async function create({ files, platform, manifest, role, shared, graph }) {
  const { file, outputs } = manifest.graphs[role];
  /** @type {Record<string, any>} */
  const options = { executionProviders: [platform.provider], logSeverityLevel: 3 };
  const onDisk = !platform.isWeb && shared.length && files.path; // where ONNX Runtime maps the weights itself
  if (shared.length && !onDisk) options.externalData = shared;
  if (!platform.isWeb && platform.threads !== undefined) options.intraOpNumThreads = platform.threads;
  if (platform.provider === "webgpu") {
    const kept = outputs.filter((port) => OWN.test(port.name)).map((port) => [port.name, "gpu-buffer"]);
    options.preferredOutputLocation = Object.fromEntries(kept);
  }
  try {
    return await platform.ort.InferenceSession.create(onDisk ? onDisk(file) : graph, options);
  } catch (error) {
    throw refusal(error, files.where, manifest, role);
  }
}

/** @param {unknown} error @param {string} where @param {import("./index.js").Manifest} manifest @param {string} role */
function refusal(error, where, manifest, role) {
  const why = brief(error);
  const operator = MISSING.map((pattern) => pattern.exec(why)?.[1]).find((name) => name !== undefined);
  if (operator !== undefined) {
    const what = `this build of ONNX Runtime lacks the operator ${operator} of the ${role} graph of ${where}`;
    const fix =
      manifest.target === "portable"
        ? "use a newer build, or export with a lower `--opset`"
        : "export with `--target portable`";
    return new UnsupportedError(`${what}, a ${manifest.target} bundle in ${manifest.precision}; ${fix}`);
  }
  return new BundleError(`ONNX Runtime can't load the ${role} graph of ${where}: ${why}`);
}

/** Half precision as single. @param {any} data 16 bits each, as numbers or as `Float16Array` @returns {Float32Array} */
export function widened(data) {
  if (!(data instanceof Uint16Array)) return Float32Array.from(data);
  return Float32Array.from(data, (bits) => {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
}
