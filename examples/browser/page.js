/** A word is pronounced as it is typed: beam search in the page, by the package in `txport`, over ONNX Runtime. */

import { load } from "./txport/index.js";
import { draw } from "./picture.js";

const TRIES = ["transformer", "colonel", "rhythm", "onomatopoeia", "queue"];
const OPTIONS = { beams: 5, nbest: 5, alignment: "soft" };
const ENGINES = { wasm: "./ort/ort.wasm.min.mjs", webgpu: "./ort/ort.webgpu.min.mjs" };
const BUNDLES = { wasm: "bundle", webgpu: "bundle-webgpu" };
const IPA = {
  ...{ AA: "ɑ", AE: "æ", AH: "ʌ", AO: "ɔ", AW: "aʊ", AY: "aɪ", B: "b", CH: "tʃ", D: "d", DH: "ð", EH: "ɛ", ER: "ɝ" },
  ...{ EY: "eɪ", F: "f", G: "ɡ", HH: "h", IH: "ɪ", IY: "i", JH: "dʒ", K: "k", L: "l", M: "m", N: "n", NG: "ŋ" },
  ...{ OW: "oʊ", OY: "ɔɪ", P: "p", R: "ɹ", S: "s", SH: "ʃ", T: "t", TH: "θ", UH: "ʊ", UW: "u", V: "v", W: "w" },
  ...{ Y: "j", Z: "z", ZH: "ʒ" },
};

const at = (id) => document.getElementById(id);
const word = at("word");
let model = null;
let attempts = 0; // to load a model: only the last one counts
let search = null; // what is being found, to be cancelled by the next letter

/** Load the bundle of a provider, and say how far that is. */
async function open(provider) {
  const started = performance.now();
  const attempt = (attempts += 1);
  at("progress").hidden = false;
  say("Loading the model");
  const { read, loaded } = reader(BUNDLES[provider]);
  let found = null;
  try {
    const ort = await import(ENGINES[provider]);
    found = await load(read, { ort, provider });
  } catch (error) {
    if (attempt !== attempts) return undefined;
    at("progress").hidden = true;
    at("provider").value = model?.provider ?? provider;
    console.error(error);
    return say("The model could not be loaded. Reload the page, or choose another processor.", true);
  }
  if (attempt !== attempts) return found.release();
  search?.abort();
  await model?.release();
  model = found;
  at("progress").hidden = true;
  const { target, precision } = model.manifest;
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  const kind = `a ${target} bundle in ${precision}, ${megabytes(loaded())}, loaded in ${seconds} s`;
  at("figures").textContent = [kind, ...model.notes].join(" · ");
  return pronounce();
}

/** What reads the files of a bundle, and moves the bar. */
function reader(folder) {
  let done = 0;
  let total = 0;
  const read = async (name) => {
    const answer = await fetch(`${folder}/${name}`);
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    total += Number(answer.headers.get("Content-Length"));
    const parts = [];
    for (const stream = answer.body.getReader(); ;) {
      const { done: isLast, value } = await stream.read();
      if (isLast) break;
      parts.push(value);
      done += value.length;
      if (total) at("progress").value = done / total;
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  };
  return { read, loaded: () => done };
}

/** Find how the word in the box is pronounced, unless another letter comes first. */
async function pronounce() {
  search?.abort();
  if (model === null) return;
  const text = word.value.trim();
  history.replaceState(null, "", text ? `#${encodeURIComponent(text)}` : location.pathname);
  if (text === "") return show(null, "Type a word.");
  search = new AbortController();
  const { signal } = search;
  const started = performance.now();
  try {
    const found = await model.generate(text, { ...OPTIONS, signal });
    show(found, `Found in ${Math.round(performance.now() - started)} ms.`);
  } catch (error) {
    if (signal.aborted) return;
    console.error(error);
    show(null, "The model knows English words only: letters from a to z and apostrophes.", true);
  }
}

function show(found, status, isWrong = false) {
  say(status, isWrong);
  at("details").hidden = found === null;
  at("best").textContent = found ? `/${ipa(found.output)}/` : "";
  at("sounds").replaceChildren(...(found?.output.split(" ") ?? []).map((sound) => element("span", sound)));
  if (found === null) return;
  at("others").replaceChildren(...found.hypotheses.map((each) => row(each, found)));
  choose(found, found.hypotheses[0]);
}

/** One hypothesis with its probability. */
function row(hypothesis, found) {
  const share = Math.exp(hypothesis.token_scores.reduce((sum, each) => sum + each, 0));
  const button = element("button");
  button.type = "button";
  button.style.setProperty("--share", share);
  button.append(element("span", `/${ipa(hypothesis.output)}/`), element("span", percent(share), "share"));
  button.addEventListener("click", () => choose(found, hypothesis));
  const item = element("li");
  item.append(button);
  return item;
}

/** Show what one hypothesis attended to. */
function choose(found, hypothesis) {
  [...at("others").querySelectorAll("button")].forEach((button, place) => {
    button.setAttribute("aria-pressed", String(found.hypotheses[place] === hypothesis));
  });
  const letters = model.tokens(model.encode(found.input).slice(0, -1));
  const sounds = hypothesis.output.split(" ");
  draw(at("picture"), letters, sounds, hypothesis.alignment);
  at("picture").dataset.word = found.input;
}

const ipa = (output) =>
  output
    .split(" ")
    .map((sound) => IPA[sound] ?? sound)
    .join("");
const percent = (share) => (share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function say(text, isWrong = false) {
  at("status").textContent = text;
  at("status").classList.toggle("wrong", isWrong);
}

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = kind;
  return made;
}

/** WebGPU can be chosen where there is one, and where the page was built with a bundle for it. */
async function offerWebGpu() {
  const option = at("provider").options[1];
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  const why = !adapter ? "none here" : !adapter.features.has("shader-f16") ? "this one has no half precision" : null;
  const isBuilt = why === null && (await fetch(`${BUNDLES.webgpu}/txport.json`, { method: "HEAD" })).ok;
  option.disabled = !isBuilt;
  if (!isBuilt) option.textContent += `: ${why ?? "not built"}`;
}

/** The word that the address ends with; nothing if it is no text. */
function wordOfHash() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

word.value = wordOfHash() || "phonetics";
word.addEventListener("input", pronounce);
addEventListener("hashchange", () => {
  word.value = wordOfHash();
  pronounce();
});
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  word.select();
});
at("tries").append(
  ...TRIES.map((text) => {
    const button = element("button", text);
    button.type = "button";
    button.addEventListener("click", () => {
      word.value = text;
      pronounce();
    });
    return button;
  }),
);
at("provider").addEventListener("change", () => open(at("provider").value));
if (matchMedia("(hover: hover)").matches) word.focus();
await open("wasm");
await offerWebGpu();
