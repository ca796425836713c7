/** How functions that give no file of a bundle are refused: JSON of the error's kind, its line and its cause. */

import * as ort from "onnxruntime-node";
import { load } from "../src/index.js";

/** @type {Record<string, (name: string) => Promise<any>>} */
const PLACES = {
  async throws() {
    throw new Error("out of reach");
  },
  "throws no error": () => Promise.reject(3),
  "gives nothing": async () => undefined,
  "gives text": async () => "{}",
};

/** @type {Record<string, any>} */
const found = {};
for (const [name, place] of Object.entries(PLACES)) {
  const error = /** @type {any} */ (await load(place, { ort }).catch((error) => error));
  found[name] = [error.name, error.message, error.cause?.message ?? error.cause ?? null];
}
process.stdout.write(JSON.stringify(found));
