"""Table of the kernels of ONNX Runtime's CUDA provider, for the audit of a graph without a GPU.

Types are those for which the provider of onnxruntime-gpu 1.31.1 registers kernels. They were read from its library with
a stub of the CUDA runtime; a test compares them with the installed wheel. Inputs and outputs on the host, and nodes
that can't be replayed, are taken from ONNX Runtime's source: onnxruntime/core/providers/cuda and
onnxruntime/contrib_ops/cuda. Operators that are unlikely in graphs of txport are not included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

OPSETS = (24, 25)  # opsets of the table
OURS = "com.microsoft."  # prefix of ONNX Runtime's contrib operators in this table

Types = frozenset[str]  # names of NumPy and ONNX
Row = Mapping[str, Types]  # type variable of the operator's schema -> its types; all their combinations have a kernel

BOOL, INT32, INT64, UINT8 = (frozenset([name]) for name in ("bool", "int32", "int64", "uint8"))
FLOAT32, FLOAT16, BFLOAT16 = (frozenset([name]) for name in ("float32", "float16", "bfloat16"))
MODEL = FLOAT32 | FLOAT16 | BFLOAT16  # dtypes of models
FLOATS = MODEL | {"float64"}
NO_BFLOAT16 = FLOATS - BFLOAT16
WORDS = INT32 | INT64 | {"uint32", "uint64"}
INDICES = INT32 | INT64
INTEGERS = WORDS | {"int8", "int16", "uint8", "uint16"}
NUMBERS = FLOATS | INTEGERS
ANY = NUMBERS | BOOL


def _of(names: str, *rows: Row, **types: Types) -> dict[str, tuple[Row, ...]]:
    """Return the same rows for each operator of `names`: `rows`, or one row of `types`."""
    return dict.fromkeys(names.split(), rows or (types,))


def _each(types: Types, *variables: str) -> Iterator[dict[str, Types]]:
    """Yield one row per type, with the same type for all `variables`."""
    for each in sorted(types):
        yield dict.fromkeys(variables, frozenset([each]))


KERNELS: dict[str, tuple[Row, ...]] = {
    **_of("Abs Add Div Mul Sign Sub", T=NUMBERS),
    **_of("And Or Xor", T=BOOL, T1=BOOL),
    **_of("ArgMax ArgMin Ceil Einsum Floor Log LogSoftmax Reciprocal ReduceLogSumExp Round", T=NO_BFLOAT16),
    **_of("Attention", *({**row, "U": row["T1"] | BOOL} for row in _each(MODEL, "T1", "T2"))),
    **_of("Cast", T1=ANY, T2=ANY),
    **_of("Clip", T=NO_BFLOAT16 | {"int64", "int8", "uint64", "uint8"}),
    **_of("Concat Expand Flatten ScatterND Split Squeeze TensorScatter Transpose Trilu Unsqueeze", T=ANY),
    **_of("ConstantOfShape", T1=INT64, T2=ANY),
    **_of("Conv Cos Erf Exp Gelu Gemm MatMul Relu Sigmoid Sin Softmax Softplus Sqrt Sum Tanh", T=FLOATS),
    **_of("CumSum", T=NO_BFLOAT16 | WORDS, T2=INDICES),
    **_of("Equal", T=NO_BFLOAT16 | WORDS | BOOL, T1=BOOL),
    **_of("Gather GatherElements ScatterElements Slice", T=ANY, Tind=INDICES),
    **_of("GatherND", T=FLOATS | INT64 | BOOL),
    **_of("Greater GreaterOrEqual Less LessOrEqual", T=NO_BFLOAT16 | WORDS, T1=BOOL),
    **_of("Identity", V=ANY),
    **_of("If", B=BOOL, V=ANY),
    **_of("IsInf IsNaN", T1=FLOATS, T2=BOOL),
    **_of("LayerNormalization", T=FLOATS, U=FLOAT32),
    **_of("Loop", I=INT64, B=BOOL, V=ANY),
    **_of("MatMulInteger", T1=frozenset(["int8"]), T2=frozenset(["int8"]), T3=INT32),
    **_of("Max Min Mod", T=FLOATS | WORDS),
    **_of("Neg", T=FLOATS | INT64 | INT32 | {"int16", "int8"}),
    **_of("NonZero", T=FLOAT32 | FLOAT16 | INT64 | INT32 | UINT8 | BOOL),
    **_of("Not", T=BOOL),
    **_of(
        "OneHot",
        *({**row, "T3": FLOAT32 | FLOAT16} for row in _each(INDICES, "T1", "T2")),
        dict.fromkeys(("T1", "T2", "T3"), INT64),
    ),
    **_of("Pad", T=NO_BFLOAT16 | BOOL),
    **_of("Pow", T=FLOATS | INDICES, T1=FLOATS | INDICES),
    **_of(
        "RMSNormalization",
        *_each(FLOATS, "T", "V"),
        {"T": FLOAT32, "V": FLOAT16},
        {"T": FLOAT16, "V": FLOAT32},
    ),
    **_of("Range", T=FLOAT32 | INDICES | {"float64", "int16"}),
    **_of("ReduceMax ReduceMin", T=NO_BFLOAT16 | INDICES | {"int8", "uint8"}),
    **_of("ReduceMean", T=FLOATS | INT32),
    **_of("ReduceSum", T=FLOATS | INDICES),
    **_of("Reshape", T=ANY),
    **_of("RotaryEmbedding", T=MODEL, M=INT64),
    **_of("Scan", V=ANY),
    **_of("Shape Size", T=ANY, T1=INT64),
    **_of(
        "SimplifiedLayerNormalization",
        {"T": FLOAT32 | FLOAT16, "U": FLOAT32, "V": FLOAT32 | FLOAT16},
        {"T": BFLOAT16, "U": FLOAT32, "V": BFLOAT16},
        {"T": frozenset(["float64"]), "U": frozenset(["float64"]), "V": frozenset(["float64"])},
    ),
    **_of("Tile", T=FLOATS | INDICES, T1=INT64),
    **_of("TopK", T=FLOATS | INDICES | {"int16", "int8", "uint8"}, I=INT64),
    **_of("Where", B=BOOL, T=FLOATS | INDICES | UINT8),
    **_of(f"{OURS}BiasAdd", T=FLOAT32 | FLOAT16),
    **_of(f"{OURS}BiasGelu {OURS}FastGelu {OURS}FusedMatMul {OURS}Gelu {OURS}QuickGelu", T=FLOATS),
    **_of(f"{OURS}GatherBlockQuantized", T1=UINT8 | {"int4", "uint4"}, T2=MODEL, Tind=INDICES),
    **_of(
        f"{OURS}GroupQueryAttention",
        *(
            {**row, "T_CACHE": row["T"] | UINT8 | {"int8"}, "T_KV_SCALE": FLOAT32, "M": INT32}
            for row in _each(FLOAT16 | BFLOAT16, "T")
        ),
    ),
    **_of(f"{OURS}MatMulNBits", *({**row, "T2": UINT8, "T3": row["T1"] | UINT8} for row in _each(MODEL, "T1"))),
    **_of(
        f"{OURS}MultiHeadAttention",
        {"T": FLOAT32, "QK": MODEL},
        {"T": FLOAT16, "QK": FLOAT32 | FLOAT16},
        {"T": BFLOAT16, "QK": FLOAT32 | BFLOAT16},
    ),
    **_of(f"{OURS}RotaryEmbedding", T=MODEL, M=INT64),
    **_of(f"{OURS}SkipLayerNormalization {OURS}SkipSimplifiedLayerNormalization", T=MODEL),
    **_of(f"{OURS}Trilu", T=ANY),
}

# Operators unknown to the onnx package: types of inputs -> types of outputs. The last type repeats.
SIGNATURES = {
    "SimplifiedLayerNormalization": "T V -> V U",
    f"{OURS}BiasAdd": "T T T -> T",
    f"{OURS}BiasGelu": "T T -> T",
    f"{OURS}FastGelu": "T T -> T",
    f"{OURS}FusedMatMul": "T T -> T",
    f"{OURS}GatherBlockQuantized": "T1 Tind T2 T1 -> T2",
    f"{OURS}Gelu": "T -> T",
    f"{OURS}GroupQueryAttention": (
        "T T T T_CACHE T_CACHE M M T T int64 T T T_KV_SCALE T_KV_SCALE T T -> T T_CACHE T_CACHE T"
    ),
    f"{OURS}MatMulNBits": "T1 T2 T1 T3 int32 T1 -> T1",
    f"{OURS}MultiHeadAttention": "T T T T int32 T T T int32 int32 -> T T T QK",
    f"{OURS}QuickGelu": "T -> T",
    f"{OURS}RotaryEmbedding": "T M T T -> T",
    f"{OURS}SkipLayerNormalization": "T T T T T -> T float32 float32 T",
    f"{OURS}SkipSimplifiedLayerNormalization": "T T T T -> T float32 float32 T",
    f"{OURS}Trilu": "T int64 -> T",
}

# Operators without a kernel that ONNX Runtime replaces by other operators (functions).
FUNCTIONS: dict[str, Sequence[str]] = {"Swish": ("Mul", "Sigmoid")}

HOST_INPUTS: dict[str, tuple[int, ...]] = {  # indices of inputs that a kernel reads on the host
    **dict.fromkeys(("Expand", "Reshape", "Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze", "CumSum"), (1,)),
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), (1,)),
    "ConstantOfShape": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MatMulInteger": (2, 3),
    "OneHot": (1, 2),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    f"{OURS}GroupQueryAttention": (6,),
    f"{OURS}MultiHeadAttention": (8,),
    f"{OURS}Trilu": (1,),
}
HOST_OUTPUTS = frozenset({"Shape", "Size"})
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

FROZEN = {  # operators that can't be captured or replayed, for any inputs
    "GatherND": "it copies sizes from memory that is freed after the run",
    "NonZero": "it waits for a count of elements, from which its output's size comes",
}
