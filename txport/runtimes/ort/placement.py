"""The providers on which ONNX Runtime placed the nodes of graphs, and checks that they are the expected ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from txport.errors import UnavailableError

NAMED = 3  # nodes in an error
Session = Any  # onnxruntime has no types

# Operators that take most of a model's time. ONNX Runtime correctly keeps shape arithmetic on the CPU if a provider
# reads shapes there; if one of these operators is on the CPU, the provider does not run a part of the model.
COMPUTE = frozenset(
    {
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "FusedGemm", "FusedConv", "GemmFloat8"),
        *("MatMulInteger", "MatMulNBits", "QLinearMatMul", "QGemm", "QLinearConv", "ConvInteger", "MatMulBnb4"),
        *("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention", "QMoE", "MoE"),
        *("Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention"),
        *("PackedAttention", "PackedMultiHeadAttention", "LinearAttention", "RotaryEmbedding", "LSTM", "GRU", "RNN"),
        *("Softmax", "LogSoftmax", "LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"),
        *("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization", "BatchNormalization"),
        *("GroupNormalization", "InstanceNormalization", "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Erf", "Tanh"),
    }
)


class Node(NamedTuple):
    """A node of the graph of a role, and the provider on which it is placed."""

    role: str
    provider: str
    name: str
    operator: str

    def __str__(self) -> str:
        """Return the name, operator and graph."""
        name = f"{self.name!r} ({self.operator})" if self.name else self.operator
        return f"{name} of the {self.role} graph"


def nodes(sessions: Mapping[str, Session]) -> Iterator[Node]:
    """Yield all nodes of the sessions, after ONNX Runtime's fusions."""
    for role, session in sessions.items():
        for part in session.get_provider_graph_assignment_info():
            for node in part.get_nodes():
                yield Node(role, part.ep_name, node.name, node.op_type)


def placement(sessions: Mapping[str, Session]) -> dict[str, dict[str, int]]:
    """Return where the nodes of each graph are, after ONNX Runtime's fusions: role -> provider -> number of nodes."""
    placed: dict[str, Counter[str]] = {role: Counter() for role in sessions}
    for node in nodes(sessions):
        placed[node.role][node.provider] += 1
    return {role: dict(counts) for role, counts in placed.items()}


def require_nodes(sessions: Mapping[str, Session], provider: str) -> None:
    """Raise `UnavailableError` if the provider runs no node of any graph, which it may although it started."""
    others = {node.provider for node in nodes(sessions)}
    if provider not in others:
        raise UnavailableError(
            f"{provider} takes no node of any graph; ONNX Runtime put all on {', '.join(sorted(others))}"
        )


def require_all_nodes(sessions: Mapping[str, Session], provider: str, *besides: str) -> None:
    """Raise `UnavailableError` if a node is not on the provider or on one of `besides`."""
    _refuse((node for node in nodes(sessions) if node.provider not in (provider, *besides)), provider)


def require_compute(sessions: Mapping[str, Session], provider: str, *besides: str) -> None:
    """Like `require_all_nodes`, but only for the operators in `COMPUTE`; shape arithmetic may be elsewhere."""
    away = (node for node in nodes(sessions) if node.provider not in (provider, *besides))
    _refuse((node for node in away if node.operator in COMPUTE), provider)


def _refuse(away: Iterable[Node], provider: str) -> None:
    """Raise `UnavailableError` that names the nodes not on the provider, if there are any."""
    left = list(away)
    if not left:
        return
    where = ", ".join(sorted({node.provider for node in left}))
    named = ", ".join(map(str, left[:NAMED]))
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    fix = "update ONNX Runtime, export again for it, with another target or precision, or use provider='cpu'"
    raise UnavailableError(f"{provider} does not take {named}{more}; ONNX Runtime put them on {where}: {fix}")
