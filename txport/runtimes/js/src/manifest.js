/** Reading `txport.json`: what its graphs are called, and what is true of the model. */

import { abilityOf } from "./encoding.js";
import { BundleError, UnsupportedError, quoted } from "./errors.js";
import { parse } from "./files.js";
import { contract } from "./ports.js";

export const FORMAT = 8;
const TASKS = ["seq2seq", "causal", "encode"];
const FUNCTIONS = ["softmax", "sigmoid", "none"]; // of labels
/** @type {Record<string, "float32" | "float16">} */
const TYPES = { fp32: "float32", fp16: "float16", int8: "float32", int4: "float32" };
const OFFERED = { portable: ["fp32", "fp16", "int8", "int4"], cpu: ["fp32", "int8", "int4"] };
const LARGEST = 8 << 20; // bytes

/**
 * The manifest of a bundle, its values checked as far as this package relies on them.
 *
 * @param {import("./files.js").Files} files
 * @returns {Promise<import("./index.js").Manifest>}
 */
export async function readManifest(files) {
  const bytes = await files.read("txport.json");
  if (bytes.length > LARGEST) throw damaged(files, `it has ${bytes.length} bytes, the most is ${LARGEST}`);
  const values = parse(files, "txport.json", bytes);
  if (!isObject(values)) throw damaged(files, "it is no object");
  if (values.format !== FORMAT) {
    const fix = values.format > FORMAT ? "update this package" : "export it again";
    const both = `bundle format ${quoted(values.format)}, this package reads format ${FORMAT}`;
    throw new BundleError(`${files.where} has ${both}; ${fix}`);
  }
  for (const name of ["facts", "files", "graphs", "generation"]) {
    if (!isObject(values[name])) throw damaged(files, `${name} must be an object`);
  }
  requireOffer(files, values);
  for (const problem of wrongFacts(values.facts)) throw damaged(files, problem);
  if (values.weightless) throw new BundleError(`${files.where} has no weights; export it without --weights none`);
  for (const [name, entry] of Object.entries(values.files)) requireFile(files, name, entry);
  requirePorts(files, values);
  for (const problem of wrongPrompts(values.generation)) throw damaged(files, problem);
  return /** @type {any} */ (values);
}

/** What is wrong with the prompts of a sentence encoder. @param {any} generation @returns {Generator<string>} */
function* wrongPrompts({ prompts = {}, prompt = "", include_prompt = true }) {
  const isText = isObject(prompts) && Object.entries(prompts).every(([key, each]) => key && typeof each === "string");
  if (!isText) yield `prompts must be texts by their names, got ${quoted(prompts)}`;
  else if (typeof prompt !== "string" || (prompt && !Object.hasOwn(prompts, prompt)))
    yield `${quoted(prompt)} is none of the prompts`;
  if (typeof include_prompt !== "boolean") yield `include_prompt must be true or false, got ${quoted(include_prompt)}`;
}

/** NumPy's name for the type of hidden states, caches and logits. @param {import("./index.js").Manifest} manifest */
export function typeOf(manifest) {
  return TYPES[manifest.precision];
}

/** @param {import("./files.js").Files} files @param {any} values */
function requireOffer(files, values) {
  const { target, precision } = values;
  if (typeof target !== "string" || !Object.hasOwn(OFFERED, target)) {
    const targets = Object.keys(OFFERED).join(" and ");
    const fix = "export with `--target portable`";
    throw new UnsupportedError(`${files.where} is of target ${quoted(target)}, this package runs ${targets}; ${fix}`);
  }
  const offered = OFFERED[/** @type {keyof typeof OFFERED} */ (target)];
  if (!offered.includes(precision)) {
    throw damaged(files, `there are no ${target} bundles in ${quoted(precision)}, but in ${offered.join(", ")}`);
  }
}

/** What is wrong with the facts. @param {any} facts @returns {Generator<string>} */
function* wrongFacts(facts) {
  if (!TASKS.includes(facts.task)) yield `task must be one of ${TASKS.join(", ")}, got ${quoted(facts.task)}`;
  const sides = { seq2seq: [true, true], causal: [false, true], encode: [true, false] };
  const [source, target] = sides[/** @type {keyof typeof sides} */ (facts.task)] ?? [false, false];
  if (source !== isObject(facts.source) || target !== isObject(facts.target)) {
    yield `a model of the task ${facts.task} has other sides than source and target as given`;
  }
  for (const side of [facts.source, facts.target]) if (isObject(side)) yield* wrongSide(side);
  if (facts.task === "seq2seq" && !isCount(facts.target?.start)) yield "the target has no start token";
  if (!Array.isArray(facts.state) || !facts.state.every(isState)) yield "state must list keys and values";
  yield* wrongOutputs(facts);
  if (facts.attention !== null && !isCount(facts.attention?.heads)) yield "attention must have heads";
}

/** @param {any} facts @returns {Generator<string>} */
function* wrongOutputs(facts) {
  const { outputs, labels, function_to_apply: kind } = facts;
  if (!Array.isArray(outputs) || !outputs.every(isOutput)) return yield "outputs must have names and dims";
  if (!Array.isArray(labels) || !labels.every((each) => typeof each === "string")) return yield "labels must be texts";
  if (labels.length && !FUNCTIONS.includes(kind)) {
    yield `function_to_apply must be one of ${FUNCTIONS.join(", ")}, got ${quoted(kind)}`;
  }
  if (labels.length === 1 && kind === "softmax") {
    yield "function_to_apply of a single label can't be softmax, which is always 1";
  }
  const able = abilityOf(facts);
  if (able === "tag" && kind === "none") {
    yield "function_to_apply of labels of tokens must be softmax or sigmoid, got 'none'";
  }
  if (able === null) return;
  const [name, ...dims] = {
    embed: ["last_hidden_state", "length", facts.width],
    fill: ["logits", "length", facts.source?.size],
    tag: ["logits", "length", labels.length],
    classify: ["logits", labels.length],
    answer: ["start_logits", "length"],
  }[able];
  const found = outputs.find((/** @type {any} */ each) => each.name === name)?.dims;
  if (found?.join() !== dims.join()) yield `a model that can ${able} gives ${name} of ${dims.join(" x ")}`;
  if (able === "fill" && !isCount(facts.source?.mask)) yield "a model that can fill has a mask";
}

/** @param {any} each */
function isOutput(each) {
  const isDim = (/** @type {unknown} */ dim) => dim === "length" || isCount(dim);
  return typeof each?.name === "string" && Array.isArray(each.dims) && each.dims.every(isDim);
}

/** @param {any} side @returns {Generator<string>} */
function* wrongSide(side) {
  for (const name of ["size", "longest"]) {
    if (!isCount(side[name]) || side[name] < 1) yield `${name} must be a positive number, got ${quoted(side[name])}`;
  }
  if ("frames" in side) return;
  for (const name of ["ends", "before", "after"]) {
    if (Array.isArray(side[name])) continue;
    yield `${name} must be a list of tokens, got ${quoted(side[name])}`;
    return;
  }
  const several = [...side.ends, ...side.before, ...side.after];
  for (const id of [side.pad, ...several, side.start ?? 0, side.mask ?? 0]) {
    if (!isCount(id) || id >= side.size) yield `a token must lie in 0 to ${side.size - 1}, got ${quoted(id)}`;
  }
}

/** @param {any} each */
function isState(each) {
  const dims = each?.dims;
  const isLaidOut =
    Array.isArray(dims) && dims.length === 3 && isCount(dims[0]) && dims[1] === "length" && isCount(dims[2]);
  return (
    isLaidOut && isCount(each.layer) && ["key", "value"].includes(each.role) && ["row", "source"].includes(each.owner)
  );
}

/**
 * Each name is relative, plain and below the bundle's folder.
 *
 * @param {import("./files.js").Files} files
 * @param {string} name
 * @param {any} entry
 */
function requireFile(files, name, entry) {
  const parts = name.split("/");
  if (/[\\:\u0000-\u001f]/.test(name) || parts.some((part) => ["", ".", ".."].includes(part))) {
    throw damaged(files, `${quoted(name)} does not lie in the bundle`);
  }
  if (!isCount(entry?.bytes) || typeof entry.sha256 !== "string") throw damaged(files, `${name} has no size or hash`);
}

/**
 * The graphs must have exactly the ports that the drivers here know.
 *
 * @param {import("./files.js").Files} files
 * @param {any} values
 */
function requirePorts(files, values) {
  for (const [role, ports] of Object.entries(contract(values))) {
    const graph = values.graphs[role];
    if (!isObject(graph) || !Object.hasOwn(values.files, graph.file))
      throw damaged(files, `the ${role} graph is not listed`);
    for (const side of /** @type {const} */ (["inputs", "outputs"])) {
      const found = Array.isArray(graph[side]) ? graph[side].map((/** @type {any} */ port) => port?.name) : [];
      if (found.join() !== ports[side].join())
        throw damaged(files, `the ${role} graph has other ${side} than such a model`);
    }
  }
}

/** @param {import("./files.js").Files} files @param {string} problem */
function damaged(files, problem) {
  return new BundleError(`${files.where}/txport.json is damaged: ${problem}; export the bundle again`);
}

/** @param {unknown} value @returns {value is Record<string, any>} */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** @param {unknown} value @returns {value is number} */
function isCount(value) {
  return Number.isSafeInteger(value) && /** @type {number} */ (value) >= 0;
}
