// node continue.mjs BUNDLE COUNT, with a JSON list of prompts (token ids) on standard input, prints a JSON list of the
// token ids that follow each of them, up to COUNT.
import { readFileSync } from "node:fs";
import { AutoModelForCausalLM, Tensor, env } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.localModelPath = "/";

const [bundle, count] = process.argv.slice(2);
const prompts = JSON.parse(readFileSync(0, "utf8"));
const model = await AutoModelForCausalLM.from_pretrained(bundle, { dtype: "fp32" });

const int64 = (values) => new Tensor("int64", BigInt64Array.from(values.map(BigInt)), [1, values.length]);
const outputs = [];
for (const prompt of prompts) {
  const inputs = int64(prompt);
  const attention_mask = int64(prompt.map(() => 1));
  const found = await model.generate({ inputs, attention_mask, max_new_tokens: Number(count), do_sample: false });
  outputs.push(found.tolist()[0].map(Number).slice(prompt.length));
}
console.log(JSON.stringify(outputs));
