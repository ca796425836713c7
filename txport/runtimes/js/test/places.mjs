/** How functions that give no file of a bundle are refused: JSON of the error's kind, its line and its cause. */

import { runInNewContext } from "node:vm";
import * as ort from "onnxruntime-node";
import { load } from "../src/index.js";

Reflect.deleteProperty(URL, "canParse"); // which old browsers lack

/** @type {Record<string, any>} */
const PLACES = {
  async throws() {
    throw new Error("out of reach");
  },
  "throws no error": () => Promise.reject(3),
  "gives nothing": async () => undefined,
  "gives text": async () => "{}",
  "gives bytes of another realm": async () => runInNewContext("new ArrayBuffer(2)"),
  "is no address": "https://[",
};

/** @type {Record<string, any>} */
const found = {};
for (const [name, place] of Object.entries(PLACES)) {
  const error = /** @type {any} */ (await load(place, { ort }).catch((error) => error));
  found[name] = [error.name, error.message, error.cause?.message ?? error.cause ?? null];
}
process.stdout.write(JSON.stringify(found));
