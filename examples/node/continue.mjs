// Greedy search over the portable bundle of a causal language model, with onnxruntime-node and nothing else:
// node continue.mjs BUNDLE MOST ID...
// The ids are those of a prompt; it prints the ids that continue it, at most MOST.
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-node";

const [folder, most, ...prompt] = process.argv.slice(2);
const { facts, graphs } = JSON.parse(readFileSync(`${folder}/txport.json`, "utf-8"));
const { size, longest, ends } = facts.target;
const model = await ort.InferenceSession.create(`${folder}/${graphs.decoder.file}`);
const ids = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);

// A cache for each layer, empty at first.
const empty = ([heads, , width]) => new ort.Tensor("float32", new Float32Array(0), [1, heads, 0, width]);
const caches = Object.fromEntries(
  facts.state.map(({ layer, role, dims }) => [`past_key_values.${layer}.${role}`, empty(dims)]),
);
const found = [];
let tokens = prompt;
let past = 0;
while (found.length < Math.min(Number(most), longest - prompt.length)) {
  const length = past + tokens.length;
  const position_ids = ids(tokens.map((_, place) => past + place));
  const attention_mask = ids(new Array(length).fill(1));
  const outputs = await model.run({ input_ids: ids(tokens), position_ids, attention_mask, ...caches });
  const logits = outputs.logits.data.subarray(-size); // of the last token
  const best = logits.reduce((at, score, id) => (score > logits[at] ? id : at), 0);
  found.push(best);
  if (ends.includes(best)) break;
  for (const name of Object.keys(caches)) caches[name] = outputs[name.replace("past_key_values", "present")];
  tokens = [best];
  past = length;
}
console.log(found.join(" "));
