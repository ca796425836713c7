"""Hugging Face Optimum: a decoder's folder, or a MarianMTModel with the weights, exported and quantised by Optimum.

ONNX Runtime runs both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import torch
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSeq2SeqLM
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from benchmarks.peers.engines import Ids, Model, Search, before_end, transformer
from txport.errors import UnsupportedError
from txport.exporters.portable.write import token_config
from txport.models.architectures.transformer import Transformer, hugging_face
from txport.models.ops import padding_mask

PACKAGES = ("optimum", "optimum-onnx", "transformers", "onnxruntime", "torch")
LOGITS_TOLERANCE = 1e-4
# txport's name -> transformers' name, within a layer
RENAMED = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_residual.norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}


def prepare(model: Model, folder: Path) -> None:
    """Export with Optimum's exporter, and quantise for int8.

    A model that is not a folder of a decoder is converted first, and its logits are compared with txport's. It is
    exported from memory, since saving a MarianMTModel omits its positions.
    """
    from optimum.exporters.onnx import main_export, onnx_export_from_model

    if Path(model.checkpoint).is_dir():
        main_export(model.checkpoint, folder, task="text-generation-with-past", do_validation=False)
    else:
        ours = transformer(model.checkpoint)
        onnx_export_from_model(convert(ours), folder, task="text2text-generation-with-past", do_validation=False)
        require_same_logits(ours, load(folder))
    if model.precision == "int8":
        quantise(folder)


def quantise(folder: Path) -> None:
    """Replace every graph by its dynamic int8 version."""
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    for path in sorted(folder.glob("*.onnx")):
        config = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        quantizer = ORTQuantizer.from_pretrained(folder, file_name=path.name)
        quantizer.quantize(quantization_config=config, save_dir=folder, file_suffix="int8")
        path.with_name(f"{path.stem}_int8.onnx").replace(path)


def convert(model: Transformer) -> Any:
    """Return a MarianMTModel with the weights of a txport model."""
    theirs = MarianMTModel(marian_config(model)).eval()
    weights = {"model.shared.weight": model.target_embedding.tokens.weight, "lm_head.weight": model.projection.weight}
    for side, embedding in (("encoder", model.source_embedding), ("decoder", model.target_embedding)):
        weights[f"model.{side}.embed_tokens.weight"] = embedding.tokens.weight
        assert embedding.positions is not None
        weights[f"model.{side}.embed_positions.weight"] = embedding.positions
    for name, parameter in model.named_parameters():
        if name.startswith(("encoder.", "decoder.")):
            side, number, rest = name.split(".", 2)
            part, _, kind = rest.rpartition(".")
            weights[f"model.{side}.layers.{number}.{RENAMED[part]}.{kind}"] = parameter
    weights["final_logits_bias"] = torch.zeros(1, model.config.target_vocab_size)
    theirs.load_state_dict(weights, strict=True)
    return theirs


def marian_config(model: Transformer) -> Any:
    """Return the config of a MarianMTModel; raise `UnsupportedError` if it can't express the model."""
    wanted = {"norm": "post", "tied": "all", "norm_epsilon": 1e-5}
    wrong = [name for name, value in wanted.items() if getattr(model.config, name) != value]
    if wrong:
        raise UnsupportedError(f"a MarianMTModel needs {', '.join(f'{name} {wanted[name]}' for name in wrong)}")
    return MarianConfig(**hugging_face(model.config), **token_config(model.facts), forced_eos_token_id=None)


@torch.inference_mode()
def require_same_logits(ours: Transformer, theirs: Any) -> None:
    """Compare teacher-forced logits of two padded rows; raise `UnsupportedError` if the graphs differ."""
    config = ours.config
    lengths = torch.tensor([9, 5])
    size = (2, 9)
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(3, config.source_vocab_size, size, generator=generator)
    target = torch.randint(3, config.target_vocab_size, size, generator=generator)
    mask = padding_mask(lengths, size[1])
    source = source.masked_fill(~mask, config.pad_id)
    expected = ours(source, lengths, target)
    got = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
    worst = float((expected - got).abs().max())
    if worst > LOGITS_TOLERANCE:
        raise UnsupportedError(
            f"the exported graphs' logits differ from ours by {worst:.1g}, allowed {LOGITS_TOLERANCE}"
        )


def load(folder: Path, **options: Any) -> Any:
    """Return Optimum's model of the graphs in a folder."""
    kind = ORTModelForSeq2SeqLM if (folder / "encoder_model.onnx").exists() else ORTModelForCausalLM
    return kind.from_pretrained(folder, local_files_only=True, **options)


class Engine:
    """Optimum with the options `threads` and `io_binding`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = options["threads"]
        torch.set_num_threads(options["threads"])  # its logits processors use PyTorch
        self._model = load(folder, session_options=session, use_io_binding=options["io_binding"])
        config = self._model.config
        self._end = config.eos_token_id
        self._pad = self._end if config.pad_token_id is None else config.pad_token_id
        self._options = GenerationConfig(
            num_beams=search.beams,
            do_sample=False,
            max_new_tokens=search.max_new_tokens,
            min_new_tokens=search.max_new_tokens if search.forced else None,
            pad_token_id=self._pad,
            bos_token_id=config.bos_token_id,
            eos_token_id=self._end,
            decoder_start_token_id=config.decoder_start_token_id,
        )

    def encode(self, sources: Ids) -> dict[str, torch.Tensor]:
        """Return padded ids and their mask, (B, S) each; prompts have the same length."""
        lengths = torch.tensor([len(source) for source in sources])
        mask = padding_mask(lengths, int(lengths.max()))
        ids = torch.full(mask.shape, self._pad)
        ids[mask] = torch.tensor([id_ for source in sources for id_ in source])
        return {"input_ids": ids, "attention_mask": mask.long()}

    def generate(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Search one batch."""
        found: torch.Tensor = self._model.generate(**inputs, generation_config=self._options)
        return found[:, 1 if self._model.config.is_encoder_decoder else inputs["input_ids"].shape[1] :]

    def decode(self, outputs: torch.Tensor) -> list[list[int]]:
        """Return the target of each source."""
        return [before_end(row, self._end) for row in outputs.tolist()]
