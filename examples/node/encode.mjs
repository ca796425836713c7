// What an encoder makes of the ids of a text, special ones included, with onnxruntime-node and nothing else:
// node encode.mjs BUNDLE ID...
// It prints JSON: a vector, scores of labels, the label of each token, the token for each mask, or the first and the last
// token of the likeliest answer in a context.
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-node";

const [folder, ...given] = process.argv.slice(2);
const { facts, generation, graphs } = JSON.parse(readFileSync(`${folder}/txport.json`, "utf-8"));
const model = await ort.InferenceSession.create(`${folder}/${graphs.model.file}`);
const ids = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);

const types = facts.has_token_types ? { token_type_ids: ids(given.map(() => 0)) } : {}; // 1 in a second text
const outputs = await model.run({ input_ids: ids(given), attention_mask: ids(given.map(() => 1)), ...types });
const vector = facts.outputs.find((each) => each.name === "sentence_embedding"); // if the graph pools
const output = vector ?? facts.outputs[0];
const { data, dims } = outputs[output.name];
const width = dims.at(-1);
const row = (place) => Array.from(data.subarray(place * width, (place + 1) * width));
const argmax = (scores) => scores.reduce((at, score, id) => (score > scores[at] ? id : at), 0);
const sigmoid = (value) => 1 / (1 + Math.exp(-value));

function embed() {
  if (vector) return row(0);
  const rows = generation.pooling === "first" ? [row(0)] : given.map((_, place) => row(place));
  const mean = row(0).map((_, at) => rows.reduce((sum, each) => sum + each[at], 0) / rows.length);
  const length = generation.normalize ? Math.hypot(...mean) : 1;
  return mean.map((value) => value / length);
}

function classify() {
  const kinds = { sigmoid: row(0).map(sigmoid), none: row(0) };
  return kinds[facts.function_to_apply] ?? argmax(row(0));
}

const tag = () => given.map((_, place) => (width === 1 ? sigmoid(data[place]) : argmax(row(place))));
const masked = (id) => Number(id) === facts.source.mask;
const fill = () => given.flatMap((id, place) => (masked(id) ? [argmax(row(place))] : []));

function answer() {
  const [starts, ends] = ["start_logits", "end_logits"].map((name) => outputs[name].data);
  let best = [1, 1];
  for (let first = 1; first < given.length - 1; first += 1)
    for (let last = first; last < Math.min(first + 15, given.length - 1); last += 1)
      if (starts[first] + ends[last] > starts[best[0]] + ends[best[1]]) best = [first, last];
  return best;
}

const ofTokens = output.dims[0] === "length";
const score = facts.labels.length === 0 ? fill : ofTokens ? tag : classify;
const finds = { logits: score, start_logits: answer }[output.name] ?? embed;
console.log(JSON.stringify(finds()));
