/** Bundles of txport in JavaScript: on Node.js and in browsers, over ONNX Runtime. */

export {
  BundleError,
  RunError,
  TextError,
  TxportError,
  UnavailableError,
  UnknownTextError,
  UnsupportedError,
} from "./errors.js";
export { Model, load } from "./model.js";
