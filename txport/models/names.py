"""Names of the files of checkpoints and bundles."""

from __future__ import annotations

CONFIG, WEIGHTS, SAMPLES = "config.json", "model.safetensors", "samples.txt"
INDEX = "model.safetensors.index.json"  # of weights in several files
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"  # as transformers once wrote them
RULES = "txport.toml"  # describes a checkpoint of the user's: its format, and rules for its tensors
GENERATION = "generation_config.json"  # of checkpoints that transformers wrote
PREPROCESSOR = "preprocessor_config.json"  # of checkpoints of speech models
PROCESSOR = "processor_config.json"  # which transformers 5 writes in its place
OF_HEARING = (PREPROCESSOR, PROCESSOR)
MODULES = "modules.json"  # of sentence encoders that sentence-transformers wrote
SENTENCES, SENTENCES_TOO = "sentence_bert_config.json", "config_sentence_transformers.json"
TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"
TEXT = "text.json"  # text settings of a model: languages, chat template, clean-up
COMPANIONS = (TOKENIZER, TARGET_TOKENIZER, TEXT, SAMPLES)  # copied unchanged from a checkpoint to its bundle
TOKENIZER_CONFIG = "tokenizer_config.json"  # written by transformers, as are the following
SPECIAL_TOKENS, ADDED_TOKENS, CHAT_TEMPLATE = "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"
PIECES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm", "target.spm", "spm.model")
WORDS = ("vocab.json", "merges.txt", "vocab.txt")
MORE_TEMPLATES = "additional_chat_templates/*.jinja"  # of chats, by their names
SPELLINGS = (TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS, CHAT_TEMPLATE, MORE_TEMPLATES, *PIECES, *WORDS)
FAIRSEQ = "dict.*.txt"  # dictionaries of fairseq, next to one pickle of any name
POOLING, DENSE, LAYER_NORM, NORMALIZE = "*_Pooling", "*_Dense", "*_LayerNorm", "*_Normalize"  # folders
OF_SENTENCES = (
    *(MODULES, SENTENCES, SENTENCES_TOO),
    *(f"{folder}/{CONFIG}" for folder in (POOLING, DENSE, LAYER_NORM, NORMALIZE)),
    *(f"{folder}/{WEIGHTS}" for folder in (DENSE, LAYER_NORM)),
)
SENTENCE_PICKLES = tuple(f"{folder}/{PICKLE}" for folder in (DENSE, LAYER_NORM))  # never downloaded
TRAINERS = ("*.npz", "model.bin", FAIRSEQ, "*_step_*.pt")  # of Marian, CTranslate2, fairseq and OpenNMT-py
# files next to the weights of these trainers: vocabularies, models for subword segmentation, weights in safetensors
MODELS_OF_PIECES = ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "spiece.model", "tokenizer.model")
CODES = ("bpecodes", "bpe.codes", "codes", "code")  # of subword-nmt or fastBPE
ENCODER, BYTE_PAIRS = "encoder.json", "vocab.bpe"  # vocabulary of GPT-2, by its names in fairseq
CUTTING = ("*.spm", "*.model", "*.bpe", *CODES, ENCODER)
BESIDE = ("*vocab*.json", "*vocab*.txt", "*_step_*.safetensors", *CUTTING)
WITH = {FAIRSEQ: ("*.pt",), "*.npz": ("*.yml", "*.yaml", "*.json")}  # files of any name next to a file like this
ADAPTER, GGUF = "adapter_config.json", ".gguf"  # of PEFT, and of llama.cpp
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MARKS = (CONFIG, RULES, *TRAINERS)  # a folder that has a file of one of these patterns may be a checkpoint
# patterns of all files that belong to a checkpoint, except its shards
MAKING = (
    *(*MARKS, WEIGHTS, *COMPANIONS, GENERATION, *OF_HEARING, *OF_SENTENCES, *SENTENCE_PICKLES),
    *(*BESIDE, *SPELLINGS),
)
# files that are downloaded from the hub: none of them can contain code
PUBLISHED = (CONFIG, WEIGHTS, INDEX, ADAPTER, *COMPANIONS, GENERATION, *OF_HEARING, *OF_SENTENCES, *SPELLINGS)
LARGEST_SAMPLES = 1 << 20  # bytes
TRANSFORMERS, NO_ORIGINAL = "transformers", "none"  # what runs the original of a checkpoint, if not the user's code
MANIFEST, GOLDEN = "txport.json", "golden.npz"  # of a bundle
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
