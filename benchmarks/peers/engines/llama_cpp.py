"""llama.cpp: a GGUF file of a Llama-like folder, quantised by llama.cpp itself, and greedy search with its decoder.

The file has no tokenizer, since prompts are ids. "int8" is Q8_0, and "int4" Q4_0 or Q4_K_M, as the precision says.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, cast

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engines import Ids, Model, Search, before_end
from txport.errors import UnsupportedError

PACKAGES = ("llama-cpp-python", "gguf", "numpy")
FILE_TYPES = {"int8": "Q8_0", "int4": "Q4_0", "int4 Q4_K_M": "Q4_K_M"}
FILE, END = "model.gguf", "tokenizer.ggml.eos_token_id"
# transformers' name -> GGUF's, within a layer
RENAMED = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def prepare(model: Model, folder: Path) -> None:
    """Write the weights in fp32, and let llama.cpp quantise the file."""
    source = folder / "fp32.gguf"
    write(Path(model.checkpoint), source)
    if model.precision == "fp32":
        source.rename(folder / FILE)
        return
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{FILE_TYPES[model.precision]}")
    if llama_cpp.llama_model_quantize(bytes(source), bytes(folder / FILE), ctypes.byref(options)):
        raise UnsupportedError(f"llama.cpp does not quantise this model to {model.precision}")
    source.unlink()


def write(source: Path, path: Path) -> None:
    """Write a folder of transformers as a GGUF file in fp32; raise `UnsupportedError` unless it is Llama-like."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config.get("rope_scaling"):
        raise UnsupportedError("llama.cpp is measured on folders of Llama without scaled rotations")
    weights = load_file(source / "model.safetensors")
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, config)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, values in weights.items():
        renamed = rename(name)
        count = heads.get(renamed.split(".")[-2])
        writer.add_tensor(renamed, values if count is None else interleave(values, count))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: Any, config: dict[str, Any]) -> None:
    """Write the sizes; without a tokenizer, the vocabulary has only a size."""
    width = config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config.get("head_dim") or width)
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_eos_token_id(config["eos_token_id"])


def rename(name: str) -> str:
    """Return GGUF's name of a tensor."""
    part, _, kind = name.rpartition(".")
    if part in OUTER:
        return f"{OUTER[part]}.{kind}"
    number, _, within = part.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{RENAMED[within]}.{kind}"


def interleave(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder the rows of a head: llama.cpp rotates neighbours, and transformers rotates halves."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


class Engine:
    """llama.cpp with the option `threads`; the prompts of a batch are read in one call, and so is each step."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(bytes(folder / FILE), llama_cpp.llama_model_default_params())
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        text = ctypes.create_string_buffer(32)
        llama_cpp.llama_model_meta_val_str(self._model, END.encode(), cast(Any, text), len(text))
        self._end = int(text.value)
        llama_cpp.llama_model_desc(self._model, cast(Any, text), len(text))
        self._is_whole = b"F32" in text.value
        self._search = search
        self._threads = options["threads"]
        self._context: Any = None
        self._room = (0, 0)

    def encode(self, sources: Ids) -> Ids:
        """Return the ids unchanged."""
        return sources

    def generate(self, inputs: Ids) -> list[list[int]]:
        """Search one batch; every row is decoded until all have ended."""
        self._reserve(len(inputs), max(map(len, inputs)))
        places = [len(prompt) for prompt in inputs]
        new = self._decode([(id_, at, row) for row, prompt in enumerate(inputs) for at, id_ in enumerate(prompt)])
        found = [[id_] for id_ in new]
        ended = [id_ == self._end for id_ in new]
        for step in range(self._search.max_new_tokens - 1):
            if all(ended):
                break
            new = self._decode([(id_, places[row] + step, row) for row, id_ in enumerate(new)])
            for row, id_ in enumerate(new):
                found[row].append(id_)
                ended[row] |= id_ == self._end
        return found

    def decode(self, outputs: list[list[int]]) -> list[list[int]]:
        """Return the targets without the end token."""
        return [before_end(row, self._end) for row in outputs]

    def _reserve(self, rows: int, longest: int) -> None:
        """Empty the caches, and make them larger if this batch needs it."""
        if rows > self._room[0] or longest > self._room[1]:
            if self._context is not None:
                llama_cpp.llama_free(self._context)
            options = llama_cpp.llama_context_default_params()
            options.n_ctx = rows * (longest + self._search.max_new_tokens)
            options.n_batch = rows * longest
            options.n_seq_max = rows
            options.kv_unified = rows == 1
            if self._is_whole:  # by default, caches are in fp16, and attention rounds to it: other tokens
                options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
                options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
            options.n_threads = options.n_threads_batch = self._threads
            self._context = llama_cpp.llama_init_from_model(self._model, options)
            self._room = (rows, longest)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _decode(self, tokens: list[tuple[int, int, int]]) -> list[int]:
        """Run (id, position, row) of all rows; return the best next id of each row."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        last = {row: number for number, (_, _, row) in enumerate(tokens)}
        for number, (id_, at, row) in enumerate(tokens):
            batch.token[number] = id_
            batch.pos[number] = at
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = row
            batch.logits[number] = last[row] == number
        status = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_batch_free(batch)
        if status:
            raise UnsupportedError(f"llama_decode returned {status}")
        return [self._best(number) for number in last.values()]

    def _best(self, number: int) -> int:
        pointer = llama_cpp.llama_get_logits_ith(self._context, number)
        logits = np.ctypeslib.as_array(pointer, (self._vocabulary,))
        if self._search.forced:
            logits[self._end] = -np.inf
        return int(logits.argmax())
