"""What the folders of sentence-transformers say: the modules of sentence encoders, and scores of cross-encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from txport.errors import ConfigError, UnsupportedError, quoted
from txport.models.config import LARGEST, read_config
from txport.models.facts import SENTENCE, Facts, Pooled
from txport.models.names import CONFIG, MODULES, POOLING, SENTENCES, SENTENCES_TOO, TOKENIZER_CONFIG
from txport.models.sentence import FUNCTIONS, LAYER_NORM, NORMALIZE, Dense, dense_of, has_weights, is_unit
from txport.system.documents import DocumentError, read_json_list

PACKAGE = "sentence_transformers."
FLAG = "pooling_mode_"
MODES = {  # each name with and without the ending that files of versions before 6 have
    name + ending: pooled
    for name, pooled in (("cls", "first"), ("mean", "mean"), ("max", "max"), ("weightedmean", "weighted-mean"))
    for ending in ("", "_token" if name == "cls" else "_tokens")
} | {"lasttoken": "last"}
LISTED = ("idx", "name", "path", "type")
UNLIMITED = 10**9  # tokenizers without a maximum length have a much larger number
LOADING = (  # keys of sentence_bert_config.json that say how Python loads and calls the model
    "backend",
    "transformer_task",
    "trust_remote_code",
    "unpad_inputs",
)
OUTPUTS = {  # whether a folder has a cross-encoder -> the task, and the names of the output that is used
    False: ("feature-extraction", "last_hidden_state", "token_embeddings"),
    True: ("sequence-classification", "logits", "scores"),
}
OF_CROSS, ACTIVATION, CROSS = "sentence_transformers", "activation_fn", "CrossEncoder"  # the first is in config.json
OTHERS = ("__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name")
ALONE = "include_prompt"  # whether the tokens of a prompt are pooled
SELECTED = ("module_input_name", "module_output_name")  # of modules after the pooling: what they read and write
LOGIT_SCORE = "LogitScore"  # of a causal model: the logit of a token after a chat template
DENSE, NORM = "Dense", "LayerNorm"  # modules with weights
SIZES = ("in_features", "out_features")
ACTIVATIONS = {name.lower(): name for name in FUNCTIONS}  # the last word of the path of PyTorch's class
DEFAULT_MODE = "mean_tokens"  # if the file does not set it
EMBEDDING = {"pooling", "normalize", "prompts", "prompt", ALONE}  # a bundle's defaults of `Encoder.embed`


class Module(NamedTuple):
    """A module of `modules.json` after the transformer: its kind, its folder and the step that it is."""

    kind: str
    folder: Path
    step: str


def modules_of(folder: Path) -> list[Module]:
    """Return the modules of a sentence encoder after the transformer, the pooling first.

    Raises `ConfigError` for modules or a pooling that are not supported.
    """
    modules = _modules(folder / MODULES)
    kinds = [kind for kind, _ in modules]
    rest = [kind for kind in kinds[2:] if kind not in READERS]
    wrong = rest or [kind for kind, wanted in zip(kinds, ("Transformer", "Pooling"), strict=False) if kind != wanted]
    if wrong or len(kinds) < 2:
        problem = f"{quoted(wrong[0])} is not supported" if wrong else "Pooling is missing"
        raise ConfigError(f"{folder / MODULES}: {problem}; supported: Transformer, Pooling, {', '.join(READERS)}")
    own, pooling = (name for _, name in modules[:2])
    if own:
        raise ConfigError(f"{folder / MODULES}: the Transformer must lie beside it, got the path {quoted(own)}")
    if not Path(pooling).match(POOLING):
        raise ConfigError(f"{folder / MODULES}: the Pooling must lie in N_Pooling, got the path {quoted(pooling)}")
    found = [Module("Pooling", folder / pooling, _pooling(folder / pooling / CONFIG))]
    for kind, name in modules[2:]:
        if kind != "Normalize" and not Path(name).match(f"*_{kind}"):
            raise ConfigError(f"{folder / MODULES}: the {kind} must lie in N_{kind}, got the path {quoted(name)}")
        found.append(Module(kind, folder / name, READERS[kind](folder / name / CONFIG)))
    _require_sizes(found)
    return found


def steps_of(folder: Path) -> tuple[str, ...]:
    """Return the steps to the vector of a text, as `models.sentence` names them; () for other folders."""
    return tuple(each.step for each in modules_of(folder)) if is_of_sentences(folder) else ()


def pooling_defaults(folder: Path, facts: Facts) -> dict[str, object]:
    """Return the options of `Encoder.embed` by `modules.json`, and the prompts; empty if there is no such file.

    Raises `ConfigError` for modules or a pooling that are not supported.
    """
    if not is_of_sentences(folder):
        return {}
    modules = modules_of(folder)
    path = modules[0].folder / CONFIG
    if (width := _width(path) or facts.width) != facts.width:
        raise ConfigError(f"{path}: word_embedding_dimension {quoted(width)} is not the model's {facts.width}")
    steps = [each.step for each in modules]
    if has_weights(steps) and not facts.pools:
        raise ConfigError(f"{folder / MODULES} has layers after the pooling; they need the output {SENTENCE}")
    prompts = _prompts(folder / SENTENCES_TOO)
    is_alone = prompts and not read_config(path).get(ALONE, True)
    return {"pooling": steps[0], "normalize": is_unit(steps)} | prompts | ({ALONE: False} if is_alone else {})


def _prompts(path: Path) -> dict[str, object]:
    """Return the prompts by their names and the name of the default one, as far as there are any."""
    values = read_config(path) if path.is_file() else {}
    prompts, name = values.get("prompts") or {}, values.get("default_prompt_name")
    if (
        not isinstance(prompts, dict)
        or "" in prompts
        or not all(isinstance(each, str | None) for each in prompts.values())
    ):
        raise ConfigError(f"{path}: prompts must be texts by their names, got {quoted(prompts)}")
    if name is not None and name not in [*prompts]:
        raise ConfigError(f"{path}: default_prompt_name {quoted(name)} is none of the prompts")
    if not any(prompts.values()):
        return {}
    return {"prompts": {key: text or "" for key, text in prompts.items()}, **({"prompt": name} if name else {})}


def activation_of(folder: Path) -> str | None:
    """Return the name of the function of a cross-encoder's scores, "" if its folder names none; None for others.

    Raises `ConfigError` for modules beside the transformer.
    """
    if not _is_cross(folder):
        return None
    if (folder / MODULES).is_file() and (modules := _modules(folder / MODULES)) != [("Transformer", "")]:
        kinds = [kind for kind, _ in modules]
        what = f"{folder / MODULES}: a {CROSS} of {quoted(' and '.join(kinds))} is not supported"
        fix = "it must be a Transformer"
        if LOGIT_SCORE in kinds:
            files = f"{MODULES}, {SENTENCES} and {SENTENCES_TOO}"
            fix = f"export a copy without {files}, and compute the score from the logits of the causal model"
        raise ConfigError(f"{what}; {fix}")
    return str(read_config(folder / SENTENCES_TOO).get(ACTIVATION) or "")


def _is_cross(folder: Path) -> bool:
    path = folder / SENTENCES_TOO
    return path.is_file() and read_config(path).get("model_type") == CROSS


def longest_sentence(folder: Path) -> int | None:
    """Return the maximum number of tokens of a text, or of a pair; None if sentence-transformers does not set it.

    Raises `ConfigError` for settings that are not supported.
    """
    path = folder / SENTENCES_TOO
    more = read_config(path) if path.is_file() else {}
    is_cross = _is_cross(folder)
    _require_known(more, (*OTHERS, *([ACTIVATION] if is_cross else [])), path)
    if is_cross and (name := more.get("default_prompt_name")):
        raise ConfigError(f"{path}: default_prompt_name {quoted(name)} is not supported in a {CROSS}")
    if not (folder / SENTENCES).is_file():
        return None
    path = folder / SENTENCES
    values = read_config(folder / SENTENCES)
    wanted, output, own = OUTPUTS[is_cross]
    modality = {"text": {"method": "forward", "method_output_name": output}}
    selecting = {"modality_config": modality, "module_output_name": own}
    _require_known(values, ("do_lower_case", "max_seq_length", *LOADING, *selecting), path)
    for name, usual in selecting.items():
        if (found := values.get(name, usual)) != usual:
            raise ConfigError(f"{path}: {name} {quoted(found)} is not supported; it must be {usual}")
    if values.get("do_lower_case"):
        raise ConfigError(f"{path}: do_lower_case is not supported; set it in the tokenizer")
    if (task := values.get("transformer_task", wanted)) != wanted:
        raise ConfigError(f"{path}: transformer_task {quoted(task)} is not supported; it must be {wanted!r}")
    longest = values.get("max_seq_length", _longest_of_tokenizer(folder))
    if longest is not None and (type(longest) is not int or longest < 1):
        raise ConfigError(f"{path}: max_seq_length must be a whole number of tokens, got {quoted(longest)}")
    return longest


def _longest_of_tokenizer(folder: Path) -> int | None:
    """Return the maximum length that the tokenizer sets, as sentence-transformers does since version 6."""
    path = folder / TOKENIZER_CONFIG
    longest = read_config(path).get("model_max_length") if path.is_file() else None
    return longest if type(longest) is int and longest < UNLIMITED else None


def _require_known(values: Mapping[str, object], known: Sequence[str], path: Path) -> None:
    """Raise `ConfigError` for a key that may change vectors and is not read; flags of pooling modes are read."""
    strange = [name for name, value in values.items() if name not in known and value not in (None, {}, [])]
    if strange := [name for name in strange if not name.startswith(FLAG)]:
        told = f"the key {quoted(strange[0])}, here {quoted(values[strange[0]])}"
        raise ConfigError(f"{path}: {told}, is not supported: vectors may depend on it")


def is_of_sentences(folder: Path) -> bool:
    """Return True if sentence-transformers wrote the folder of a sentence encoder."""
    return (folder / MODULES).is_file() and not _is_cross(folder)


def require_pooling(values: Mapping[str, object], facts: Facts) -> None:
    """Raise `UnsupportedError` if a bundle's pooling values are invalid, or if its model can't embed."""
    if not values:
        return
    if facts.pools and not values.get(ALONE, True):
        raise UnsupportedError(f"a graph with the output {SENTENCE} pools the tokens of a prompt too; {ALONE} is false")
    if facts.ability != "embed" or not {"pooling", "normalize"} <= values.keys() <= EMBEDDING:
        raise UnsupportedError(f"a model that can {facts.ability} has no {quoted(sorted(values))}")
    if values["pooling"] not in get_args(Pooled) or type(values["normalize"]) is not bool:
        words = f"one of {', '.join(get_args(Pooled))}, and true or false"
        raise UnsupportedError(f"{quoted(dict(values))} is no pooling: {words}")
    prompts = values.get("prompts", {})
    if not isinstance(prompts, dict) or not all(isinstance(each, str) for each in prompts.values()):
        raise UnsupportedError(f"prompts must be texts by their names, got {quoted(prompts)}")
    if "" in prompts or values.get("prompt", "") not in ("", *prompts):
        raise UnsupportedError(f"{quoted(values.get('prompt'))} is none of the prompts, or one of them has no name")
    if type(values.get(ALONE, True)) is not bool:
        raise UnsupportedError(f"{ALONE} must be true or false, got {quoted(values[ALONE])}")


def _modules(path: Path) -> Sequence[tuple[str, str]]:
    """Return the kind and the folder of each module, in order."""
    try:
        listed = read_json_list(path)
        found = [(str(each["type"]), each["path"]) for each in listed]
        for each in listed:
            _require_known(each, LISTED, path)
    except (DocumentError, LookupError, TypeError) as error:
        raise ConfigError(f"{path} must list modules with a type and a path each") from error
    if strange := [kind for kind, _ in found if not kind.startswith(PACKAGE)]:
        raise ConfigError(f"{path}: {quoted(strange[0])} is custom code, which is not supported")
    if strange := [name for _, name in found if not isinstance(name, str) or Path(name).name != name]:
        raise ConfigError(f"{path} must name folders beside it, got {quoted(strange[0])}")
    return [(kind.rpartition(".")[2], name) for kind, name in found]


def _of_vectors(values: Mapping[str, object], path: Path, *known: str) -> None:
    """Raise `ConfigError` for unknown keys, and for a module that reads anything but the vector of a text."""
    _require_known(values, (*known, *SELECTED), path)
    for name in SELECTED:
        if values.get(name) not in (None, SENTENCE):
            raise ConfigError(f"{path}: {name} {quoted(values[name])} is not supported; it must be {SENTENCE!r}")


def _normalize(path: Path) -> str:
    _of_vectors(read_config(path) if path.is_file() else {}, path)
    return NORMALIZE


def _layer_norm(path: Path) -> str:
    values = read_config(path)
    _of_vectors(values, path, "dimension")
    _size(values, "dimension", path)
    return LAYER_NORM


def _dense(path: Path) -> str:
    """Return the step of a Dense; its activation is a class of PyTorch, Tanh if the file names none."""
    values = read_config(path)
    _of_vectors(values, path, *SIZES, "bias", "activation_function", "use_residual")
    for size in SIZES:
        _size(values, size, path)
    if values.get("use_residual"):
        raise ConfigError(f"{path}: use_residual true is not supported")
    bias, activation = values.get("bias", True), values.get("activation_function", "torch.nn.Tanh")
    if type(bias) is not bool:
        raise ConfigError(f"{path}: bias must be true or false, got {quoted(bias)}")
    name = ACTIVATIONS.get(str(activation).rpartition(".")[2].lower())
    if name is None or not str(activation).startswith("torch.nn."):
        known = ", ".join(FUNCTIONS)
        raise ConfigError(f"{path}: activation_function {quoted(activation)} is not supported; supported: {known}")
    return str(Dense(values["out_features"], name, bias))


def _size(values: Mapping[str, object], name: str, path: Path) -> int:
    size = values.get(name)
    if type(size) is not int or not 0 < size <= LARGEST:
        raise ConfigError(f"{path}: {name} must be a whole number from 1 to {LARGEST}, got {quoted(size)}")
    return size


READERS = {DENSE: _dense, NORM: _layer_norm, "Normalize": _normalize}  # of a module after the pooling: its step


def _require_sizes(modules: Sequence[Module]) -> None:
    """Raise `ConfigError` for a module that reads vectors of another size than the module before it gives."""
    size = _width(modules[0].folder / CONFIG)
    for kind, folder, step in modules[1:]:
        name = {DENSE: SIZES[0], NORM: "dimension"}.get(kind)
        own = read_config(folder / CONFIG)[name] if name else size
        if size and own != size:
            before = f"the size {quoted(size)} of the vectors before it"
            raise ConfigError(f"{folder / CONFIG}: {name} {own} is not {before}")
        dense = dense_of(step)
        size = own if dense is None else dense.size


def _width(path: Path) -> int | None:
    """Return the size of the tokens' vectors by the file of a Pooling; None if it has none."""
    values = read_config(path)
    found: int | None = values.get("word_embedding_dimension", values.get("embedding_dimension"))
    return found


def _pooling(path: Path) -> str:
    """Return the only pooling mode that is enabled; raise `ConfigError` for none, several or unsupported ones."""
    values = read_config(path)
    _require_known(values, ("word_embedding_dimension", "embedding_dimension", "pooling_mode", ALONE), path)
    flags = {FLAG + DEFAULT_MODE: True, **{name: each for name, each in values.items() if name.startswith(FLAG)}}
    modes = [name.removeprefix(FLAG) for name, is_on in flags.items() if is_on]
    modes = [str(values["pooling_mode"])] if values.get("pooling_mode") is not None else modes
    if len(modes) != 1 or modes[0] not in MODES:
        told = quoted(" and ".join(modes) or "none")
        raise ConfigError(f"{path}: pooling_mode {told} is not supported; supported: {', '.join(sorted(MODES))}")
    return MODES[modes[0]]
