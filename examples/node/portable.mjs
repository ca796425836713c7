// Greedy search over the graphs of a portable bundle, with onnxruntime-node and nothing else:
// node portable.mjs BUNDLE WORD...
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-node";

const [folder, ...words] = process.argv.slice(2);
const manifest = JSON.parse(readFileSync(`${folder}/txport.json`, "utf-8"));
const { source, target, state } = manifest.facts; // start and end tokens, and the caches of each layer
const vocabulary = JSON.parse(readFileSync(`${folder}/tokenizer.json`, "utf-8")).model.vocab;
const names = Object.fromEntries(Object.entries(vocabulary).map(([token, id]) => [id, token]));

const open = (role) => ort.InferenceSession.create(`${folder}/${manifest.graphs[role].file}`);
const [encoder, decoder] = [await open("encoder"), await open("decoder")];
const ids = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);

function encode(word) {
  const letters = [...word.normalize("NFC").toLowerCase()];
  const strange = letters.find((letter) => !Object.hasOwn(vocabulary, letter));
  if (strange !== undefined) throw new Error(`the vocabulary has no ${strange}`);
  return [...letters.map((letter) => vocabulary[letter]), ...source.after];
}

// An empty cache for each layer, role and owner; the first step fills in those of the source.
function emptyCaches() {
  const side = { row: "decoder", source: "encoder" };
  const empty = ([heads, , width]) => new ort.Tensor("float32", new Float32Array(0), [1, heads, 0, width]);
  return Object.fromEntries(
    state.map(({ layer, role, owner, dims }) => [`past_key_values.${layer}.${side[owner]}.${role}`, empty(dims)]),
  );
}

async function generate(word) {
  const tokens = encode(word);
  const mask = ids(tokens.map(() => 1));
  const encoded = await encoder.run({ input_ids: ids(tokens), attention_mask: mask });
  const held = { encoder_hidden_states: encoded.last_hidden_state, encoder_attention_mask: mask };
  const caches = emptyCaches();
  const found = [target.start];
  while (found.length <= target.longest) {
    const outputs = await decoder.run({ input_ids: ids(found.slice(-1)), ...held, ...caches });
    const logits = outputs.logits.data;
    const token = logits.indexOf(Math.max(...logits));
    if (target.ends.includes(token)) break;
    for (const past of Object.keys(caches)) {
      if (found.length > 1 && past.includes(".encoder.")) continue; // the source's stay as the first step made them
      caches[past] = outputs[past.replace("past_key_values", "present")];
    }
    found.push(token);
  }
  return found.slice(1).map((token) => names[token]);
}

for (const word of words) console.log((await generate(word)).join(" "));
