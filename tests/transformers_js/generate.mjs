// node generate.mjs BUNDLE TASK, with a JSON list of texts on standard input, prints a JSON list of outputs.
// TASK is a pipeline's, or "pair" for a bundle with two vocabularies, which no pipeline takes.
import { readFileSync } from "node:fs";
import { AutoModelForSeq2SeqLM, AutoTokenizer, env, pipeline } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.localModelPath = "/";

const [bundle, task] = process.argv.slice(2);
const texts = JSON.parse(readFileSync(0, "utf8"));

async function withPipeline() {
  const generate = await pipeline(task, bundle, { dtype: "fp32" });
  return async (text) => {
    const [result] = await generate(text);
    return result.translation_text ?? result.generated_text;
  };
}

async function withTwoTokenizers() {
  const source = await AutoTokenizer.from_pretrained(`${bundle}/source_tokenizer`);
  const target = await AutoTokenizer.from_pretrained(`${bundle}/target_tokenizer`);
  const model = await AutoModelForSeq2SeqLM.from_pretrained(bundle, { dtype: "fp32" });
  return async (text) => target.batch_decode(await model.generate(source(text)), { skip_special_tokens: true })[0];
}

const generate = await (task === "pair" ? withTwoTokenizers() : withPipeline());
const outputs = [];
for (const text of texts) outputs.push(await generate(text)); // one by one: in a batch, rows run on after their end
console.log(JSON.stringify(outputs));
