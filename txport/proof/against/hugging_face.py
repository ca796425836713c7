"""What transformers (an optional package) makes of a folder: the original, and the tokens of texts."""

# ruff: noqa: RUF001 - letters of other scripts look like Latin ones

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from txport.bundles.comparisons import NOT_COMPARED
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.folder import Lora
from txport.checkpoints.sources.packed import is_mxfp4
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ParityError, TextError, brief
from txport.models.audio import Features
from txport.models.config import read_config
from txport.models.facts import Facts
from txport.models.names import CONFIG, TOKENIZER
from txport.proof.against.batches import Batch
from txport.proof.against.original import NAMED, Original, Run
from txport.system.machine import is_out_of_memory
from txport.system.packages import needed, version_of
from txport.text.base import Tokenizer
from txport.text.load import tokenizer_of

WHOLE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")  # suffixes of classes that return logits
ALONE = "EncoderModel"  # suffix of the class of an encoder without its decoder
GENERIC = {"seq2seq": "AutoModelForSeq2SeqLM", "causal": "AutoModelForCausalLM", "encode": "AutoModel"}
HEARD = "AutoModelForSpeechSeq2Seq"
OLDER = {"gamma": "weight", "beta": "bias"}  # names in old files -> current names
logger = logging.getLogger(__name__)
SUMS = 2**-18  # the largest difference of sums in float32, relative to the largest number of a tensor
LINES = (
    "The weather was fine, so we walked to the old harbour.",
    "I don't know: it costs $12.50, doesn't it? 1234567 (100%)",
    "  two blanks  and three   here ",
    "\ta tab\nand a line end\r\nthen another\n\n",
    "def add(a, b):\n    return a[0] + b  # x != y",
    "HELLO World CamelCase snake_case ABCdef",
    "https://example.org/a?b=c&d=e anna@example.org",
    "Größe, naïve façade, ¿señor?, žluťoučký",
    "e\u0301te\u0301 n\u0303 a\u0308",
    "Мы едем на дачу. Το παιδί διαβάζει.",
    "今日は天気がいい。我们去散步吧。오늘은 날씨가 좋아서",
    "الطقس جميل היום आज मौसम วันนี้",
    "“quotes” ‘single’ — dash… ½ ² ™ № ﬁ Ａ１",
    "😀 👨‍👩‍👧 🇫🇷 👍🏽",
    "a\u00a0b\u200bc\u3000d",
    "word",
)
FIX = (
    "%s: %d of %d lines have other tokens than with transformers' %s, such as %r; to export the tokenizer that"
    " transformers makes of these files, save it first: AutoTokenizer.from_pretrained('%s').save_pretrained('%s')"
)


def load_transformers(
    folder: Path,
    weights: Weights,
    facts: Facts,
    renamed: Mapping[str, str] | None = None,
    loras: Sequence[Lora] = (),
) -> Original:
    """Load the model of a folder in Hugging Face format; code in the folder is never run.

    `renamed` are names in the files and those of `weights`, which lack a prefix that transformers does not remove.
    Matrices of 4 bits are given to it in float32: it runs those of GPTQ and AWQ only with further packages, on a GPU.
    `loras` are merged by PEFT, which must be installed, into the tensors of the folder.
    Raise `CheckpointError` if transformers can't load it or the folder lacks tensors.
    """
    module, lacking, name = _loaded(folder, weights, facts, renamed or {})
    if missing := [each for each in lacking if not _is_unused(each, facts)]:
        raise CheckpointError(f"{folder} lacks {', '.join(sorted(missing)[:NAMED])}, which {name} has")
    if loras:
        module = _with_loras(module, loras)
        name += f" with PEFT {version_of('peft')}"
    module = module.cpu().float().eval()
    _restore_scales(module)
    _take_merged(module, weights, loras)
    return Original(name, module, _run(facts), _names(module, weights, name, folder), masks=not facts.is_causal)


def _loaded(folder: Path, weights: Weights, facts: Facts, renamed: Mapping[str, str]) -> tuple[Any, list[str], str]:
    """Return the model that transformers loads, the tensors that its folder lacks, and its name."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with needed("txport[hf]", "a comparison with transformers"):
        import transformers
    version = transformers.__version__
    how: dict[str, object] = {"local_files_only": True, "trust_remote_code": False, "output_loading_info": True}
    how |= {_dtype_option(version): torch.float32, "attn_implementation": "eager"}
    if renamed:
        how["key_mapping"] = {f"^{re.escape(name)}$": new for name, new in renamed.items()}
    try:
        kind = _class(transformers, folder, facts)
        if kind.__name__.startswith("Falcon"):
            how["attn_implementation"] = "sdpa"  # its default; its eager attention adds the biases of ALiBi twice
        with _without_bar(transformers.utils.logging):
            place: str | None = str(folder)
            if weights.grids:
                place, how["state_dict"] = None, {name: weights[name] for name in weights.shapes}
                how["config"] = _unquantised(transformers.AutoConfig.from_pretrained(str(folder)))
            elif is_mxfp4(folder):
                how["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
            module, told = kind.from_pretrained(place, **how)
    except MemoryError:
        raise
    except Exception as error:  # it has many
        if is_out_of_memory(error):
            raise
        what = f"transformers {version} can't load {folder}: {type(error).__name__}: {brief(error)}"
        raise CheckpointError(what) from error
    return module, [*told.get("missing_keys", ())], f"transformers {version}'s {type(module).__name__}"


def _with_loras(module: Any, loras: Sequence[Lora]) -> nn.Module:
    """Return a module with LoRAs merged by PEFT, each with its weight."""
    with needed("peft", "a comparison of a LoRA"):
        import peft
        from peft.tuners.lora import LoraLayer
    names = [f"lora{number}" for number in range(len(loras))]
    for name, lora in zip(names, loras, strict=True):
        if name == names[0]:
            module = peft.PeftModel.from_pretrained(module, str(lora.folder), adapter_name=name)
        else:
            module.load_adapter(str(lora.folder), adapter_name=name)
        for each in module.modules():
            if isinstance(each, LoraLayer) and name in each.scaling:
                each.scaling[name] *= lora.weight  # older PEFT's set_scale computes that of rsLoRA wrongly
    found: nn.Module = module.merge_and_unload(adapter_names=names)
    return found


def _take_merged(module: nn.Module, weights: Weights, loras: Sequence[Lora]) -> None:
    """Give a module that PEFT has merged the import's numbers, which may differ by the rounding of sums.

    Raises `ParityError` for larger differences.
    """
    base = getattr(module, "base_model_prefix", "") + "."
    for name, tensor in module.state_dict(keep_vars=True).items() if loras else ():
        to = next((each for each in _ways(name, base) if each in weights.shapes), None)
        if to is not None and tuple(tensor.shape) == weights.shapes[to]:
            ours = weights[to].to(tensor.dtype)
            if (tensor.detach() - ours).abs().max() > SUMS * tensor.detach().abs().max():
                raise ParityError(f"PEFT merges the LoRA to other numbers of {name}")
            tensor.data.copy_(ours)


def _unquantised(config: object) -> object:
    """Return a config of a folder in 4 bits for its weights in float32."""
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _dtype_option(version: str) -> str:
    """Return the name of the option for the type of the weights."""
    return "dtype" if tuple(map(int, version.split(".")[:2])) >= (4, 56) else "torch_dtype"


@contextlib.contextmanager
def _without_bar(logs: Any) -> Iterator[None]:
    """Turn off the progress bars of transformers, and turn them on again if they were."""
    was_on = logs.is_progress_bar_enabled()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logs.enable_progress_bar()


def _is_unused(name: str, facts: Facts) -> bool:
    """Return True for the tensors of a pooler, which hidden states do not depend on."""
    return facts.ability == "embed" and "pooler." in name


def _restore_scales(module: nn.Module) -> None:
    """Replace the scales of Gemma's embeddings, which are buffers rounded to float32, by the exact numbers."""
    for each in module.modules():
        if isinstance(scale := getattr(each, "scalar_embed_scale", None), float):
            each.embed_scale = torch.tensor(scale, dtype=torch.float64)


def _class(transformers: Any, folder: Path, facts: Facts) -> Any:
    """Return the class that the config names, if its outputs match the import's; else the class for the task."""
    values = read_config(folder / CONFIG)
    named = values.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    is_whole = first.endswith(WHOLE) if facts.generates else facts.ability != "embed" or first.endswith(ALONE)
    if is_whole and first.isidentifier():
        with contextlib.suppress(AttributeError):
            found = getattr(transformers, first)
            if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
                return found
    return getattr(transformers, HEARD if isinstance(facts.source, Features) else GENERIC[facts.task])


def _names(module: nn.Module, weights: Weights, what: str, place: Path) -> dict[str, str]:
    """Return tensor names -> names in the files, which may lack the base model's prefix or use older names."""
    base = getattr(module, "base_model_prefix", "") + "."
    found: dict[str, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        to = next((each for each in _ways(name, base) if each in weights.shapes), None)
        if to is None or tuple(tensor.shape) != weights.shapes[to]:
            continue
        if not torch.equal(tensor.detach(), weights[to].to(tensor.dtype)):
            raise CheckpointError(f"{what} has other numbers for {name} than {to} of {place}")
        found[name] = to
    return found


def _ways(name: str, base: str) -> Iterator[str]:
    """Yield the possible names of a tensor in a file."""
    older = [name]
    for old, new in OLDER.items():
        if name.endswith(f".{new}"):
            older.append(name.removesuffix(new) + old)
    for each in older:
        yield each
        yield each.removeprefix(base)
        yield base + each


def _run(facts: Facts) -> Run:
    """Return a function that calls a transformers model on a batch."""

    def run(module: nn.Module, given: Batch) -> object:
        inputs: dict[str, object] = {"return_dict": True}
        if isinstance(facts.source, Features):
            inputs["input_features"] = given.source
        else:
            inputs |= {"input_ids": given.source, "attention_mask": given.mask.long()}
        if facts.has_token_types:
            size = facts.vocabulary.size
            inputs |= {"input_ids": given.source % size, "token_type_ids": given.source // size}
        if facts.is_encoder_decoder:
            inputs["decoder_input_ids"] = given.target
        if facts.generates:
            inputs["use_cache"] = False
        found: Mapping[str, object] = module(**inputs)
        return found

    return run


# ------------------------------------------------------------------------------------------ tokens of texts
def compare_texts(checkpoint: Checkpoint, folder: Path) -> dict[str, object]:
    """Return the record of `LINES`: how many are compared, and those with other ids.

    Of a model that generates, a line differs also if its ids have another text.

    Versions of transformers differ in what they read, so other tokens are a warning. The record is {} for a model that
    reads no text, and has the reason if transformers can't load the tokenizer. Code in the folder is never run.
    """
    if isinstance(checkpoint.facts.reads, Features) or TOKENIZER not in checkpoint.companions:
        return {}
    ours = tokenizer_of(checkpoint.companions, folder, checkpoint.facts)
    try:
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        writes = checkpoint.facts.generates
        differing = [line for line in LINES if _differs(ours, theirs, line, writes=writes)]
    except MemoryError:
        raise
    except Exception as error:  # it has many
        if is_out_of_memory(error):
            raise
        return {NOT_COMPARED: f"{type(error).__name__}: {brief(error)}".replace(str(folder), folder.name)}
    if differing:
        logger.warning(FIX, folder, len(differing), len(LINES), type(theirs).__name__, differing[0], folder, folder)
    return {"name": type(theirs).__name__, "lines": len(LINES), "differing": differing}


def _differs(ours: Tokenizer, theirs: Any, line: str, *, writes: bool) -> bool:
    """Return whether a line has other ids, or if the model `writes` texts, its ids have another text.

    How an unknown token is written is free.
    """
    expected = list(theirs(line).input_ids)
    ids: list[int] = list(theirs("").input_ids)  # of a text without any token of the vocabulary
    with contextlib.suppress(TextError):
        ids = ours.encode(line, "token")
    known = [id_ for id_ in expected if id_ != theirs.unk_token_id]
    return ids != expected or (writes and ours.decode(known) != theirs.decode(known, skip_special_tokens=True))
