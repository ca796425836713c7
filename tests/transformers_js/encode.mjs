// node encode.mjs BUNDLE CLASS, with {ids, mask} on standard input (rows of numbers), prints each output as {dims, data}.
import { readFileSync } from "node:fs";
import * as transformers from "@huggingface/transformers";

transformers.env.allowRemoteModels = false;
transformers.env.localModelPath = "/";

const [bundle, kind] = process.argv.slice(2);
const { ids, mask } = JSON.parse(readFileSync(0, "utf8"));

function tensor(rows) {
  return new transformers.Tensor("int64", BigInt64Array.from(rows.flat().map(BigInt)), [rows.length, rows[0].length]);
}

const model = await transformers[kind].from_pretrained(bundle, { dtype: "fp32" });
const found = await model({ input_ids: tensor(ids), attention_mask: tensor(mask) });
const outputs = {};
for (const [name, value] of Object.entries(found)) outputs[name] = { dims: value.dims, data: Array.from(value.data) };
console.log(JSON.stringify(outputs));
