/** Requests as JSON on stdin -> answers on stdout, by onnxruntime-node, or by the wasm of onnxruntime-web. */

import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import { answers } from "./answers.mjs";

const asked = JSON.parse(await text(process.stdin));
if (asked.simd === false) WebAssembly.validate = () => false; // as in an old browser
const { load } = await import(asked.package ?? "../src/index.js");
if (asked.library) {
  const { Tokenizer } = await import(asked.library); // of @huggingface/tokenizers
  asked.load = { tokenizer: new Tokenizer(JSON.parse(readFileSync(`${asked.bundle}/tokenizer.json`, "utf-8")), {}) };
}
const ort = asked.found ? undefined : await import(asked.web ? "onnxruntime-web" : "onnxruntime-node");
process.stdout.write(JSON.stringify(await answers(load, ort, asked)));
