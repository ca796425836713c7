/** Requests as JSON on stdin -> answers on stdout, by onnxruntime-node, or by the wasm of onnxruntime-web. */

import { existsSync, promises, readFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { text } from "node:stream/consumers";
import { answers } from "./answers.mjs";

/** The ways to give a tokenizer of a library. @type {Record<string, (library: any, bundle: string) => any>} */
const tokenizers = {
  one: (library, bundle) => reads(library, bundle).source,
  pair: reads,
  both(library, bundle) {
    const { source, target } = reads(library, bundle);
    return { encode: source.encode.bind(source), decode: target.decode.bind(target) };
  },
  function: (library) => (/** @type {any} */ file) => new library(file, {}),
  async auto(library, bundle) {
    const transformers = new URL("../../transformers/dist/transformers.node.mjs", `file://${asked.library}`);
    const { AutoTokenizer, env } = await import(transformers.href);
    env.allowRemoteModels = false;
    env.localModelPath = "/";
    const open = (/** @type {string} */ folder) => AutoTokenizer.from_pretrained(`${bundle}${folder}`);
    if (!existsSync(`${bundle}/source_tokenizer`)) return open("");
    return { source: await open("/source_tokenizer"), target: await open("/target_tokenizer") };
  },
};

/** The tokenizers of sources and targets. @param {any} library @param {string} bundle */
function reads(library, bundle) {
  const read = (/** @type {string} */ name) => new library(JSON.parse(readFileSync(`${bundle}/${name}`, "utf-8")), {});
  const target = existsSync(`${bundle}/target_tokenizer.json`) ? "target_tokenizer.json" : "tokenizer.json";
  return { source: read("tokenizer.json"), target: read(target) };
}

const asked = JSON.parse(await text(process.stdin));
if (asked.simd === false) WebAssembly.validate = () => false; // as in an old browser
if (asked.large) {
  const { readFile } = promises;
  const error = Object.assign(new Error(), { code: "ERR_FS_FILE_TOO_LARGE" }); // as for a file of 2 GiB
  const read = (/** @type {any[]} */ ...[path, how]) =>
    String(path).endsWith(".bin") ? Promise.reject(error) : readFile(path, how);
  Object.assign(promises, { readFile: read });
  syncBuiltinESMExports();
}
const { load } = await import(asked.package ?? "../src/index.js");
if (asked.library) {
  const { Tokenizer } = await import(asked.library); // of @huggingface/tokenizers
  asked.load = { ...asked.load, tokenizer: await tokenizers[asked.given ?? "one"](Tokenizer, asked.bundle) };
}
const ort = asked.found ? undefined : await import(asked.web ? "onnxruntime-web" : "onnxruntime-node");
process.stdout.write(JSON.stringify(await answers(load, ort, asked)));
