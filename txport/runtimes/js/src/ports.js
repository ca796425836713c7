/** The inputs and outputs of the graphs of a bundle, as `txport/targets` names them. */

/**
 * @typedef {import("./index.js").StateTensor} StateTensor
 * @typedef {{ inputs: string[], outputs: string[] }} Ports
 */

/**
 * The ports of each graph that a bundle of such a model has, in order.
 *
 * @param {{ target: string, facts: import("./index.js").Facts }} manifest
 * @returns {Record<string, Ports>}
 */
export function contract({ target, facts }) {
  return (target === "cpu" ? CPU : PORTABLE)[facts.task](facts);
}

/**
 * How the tensors of the state are called before and after a step, in order.
 *
 * @param {string} target
 * @param {import("./index.js").Facts} facts
 * @param {StateTensor} tensor
 */
export function stateNames(target, facts, tensor) {
  const { layer, role, owner } = tensor;
  if (target === "cpu" && owner === "source")
    return { past: `cross.${layer}.${role}`, present: `cross.${layer}.${role}` };
  if (target === "cpu") return { past: `past.${layer}.${role}`, present: `present.${layer}.${role}` };
  const side = facts.task === "causal" ? "" : owner === "row" ? "decoder." : "encoder.";
  return { past: `past_key_values.${layer}.${side}${role}`, present: `present.${layer}.${side}${role}` };
}

/**
 * The output of what tokens attend to in the source.
 *
 * @param {string} target
 * @param {import("./index.js").Facts} facts
 */
export function attentionName(target, facts) {
  if (facts.attention === null) return null;
  return target === "cpu" ? "cross_attention" : `cross_attentions.${facts.attention.layer}`;
}

/** @type {Record<string, (facts: import("./index.js").Facts) => Record<string, Ports>>} */
const PORTABLE = {
  seq2seq(facts) {
    const state = facts.state.map((each) => stateNames("portable", facts, each));
    const mask = readsTokens(facts) ? ["attention_mask"] : [];
    const kept = [
      "encoder_hidden_states",
      ...(readsTokens(facts) ? ["encoder_attention_mask"] : []),
      ...state.map((each) => each.past),
    ];
    return {
      encoder: { inputs: [sourceName(facts), ...mask], outputs: ["last_hidden_state"] },
      decoder: {
        inputs: ["input_ids", ...kept],
        outputs: ["logits", ...state.map((each) => each.present), ...given(attentionName("portable", facts))],
      },
      select: select(kept),
    };
  },
  causal(facts) {
    const state = facts.state.map((each) => stateNames("portable", facts, each));
    const past = state.map((each) => each.past);
    return {
      decoder: {
        inputs: ["input_ids", "attention_mask", "position_ids", ...past],
        outputs: ["logits", ...state.map((each) => each.present)],
      },
      select: select(["attention_mask", ...past]),
    };
  },
  encode: (facts) => ({
    model: {
      inputs: ["input_ids", "attention_mask", ...(facts.has_token_types ? ["token_type_ids"] : [])],
      outputs: facts.outputs.map((each) => each.name),
    },
  }),
};

/** @type {Record<string, (facts: import("./index.js").Facts) => Record<string, Ports>>} */
const CPU = {
  seq2seq(facts) {
    const cross = owned(facts, "source").map((each) => each.past);
    return {
      encoder: { inputs: [sourceName(facts), "source_lengths"], outputs: cross },
      step: step(facts, ["input_ids", "past_lengths", "cache_capacity", "source_lengths", ...cross]),
    };
  },
  causal: (facts) => ({ step: step(facts, ["input_ids", "last_places", "total_sequence_length", "logits_at"]) }),
  encode: (facts) => ({
    model: { inputs: ["input_ids", "source_lengths"], outputs: facts.outputs.map((each) => each.name) },
  }),
};

/** @param {import("./index.js").Facts} facts @param {string[]} first @returns {Ports} */
function step(facts, first) {
  const own = owned(facts, "row");
  const align = facts.attention === null ? [] : ["align"];
  return {
    inputs: [...first, ...own.map((each) => each.past), ...align, "k"],
    outputs: ["logits", ...own.map((each) => each.present), ...given(attentionName("cpu", facts)), "log_probs", "ids"],
  };
}

/** @param {import("./index.js").Facts} facts @param {"row" | "source"} owner */
function owned(facts, owner) {
  return facts.state.filter((each) => each.owner === owner).map((each) => stateNames("cpu", facts, each));
}

/** @param {string[]} kept @returns {Ports} */
function select(kept) {
  return { inputs: [...kept, "rows"], outputs: kept.map((name) => `selected.${name}`) };
}

/** Whether sources are tokens, not features of sound. @param {import("./index.js").Facts} facts */
export function readsTokens(facts) {
  return !(facts.source !== null && "frames" in facts.source);
}

/** @param {import("./index.js").Facts} facts */
function sourceName(facts) {
  return readsTokens(facts) ? "input_ids" : "input_features";
}

/** @param {string | null} name */
function given(name) {
  return name === null ? [] : [name];
}
