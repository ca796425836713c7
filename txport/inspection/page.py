"""A self-contained HTML page of a bundle, without scripts, links or external fonts.

Names in a bundle are untrusted: they are escaped, shortened, and at most `MOST` are in a table.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from txport.bundles.bundle import Bundle
from txport.bundles.comparisons import describe_kept
from txport.bundles.foreign.files import LATER
from txport.bundles.foreign.manifest import ForeignManifest
from txport.bundles.graphs import read_outline
from txport.bundles.manifest import Manifest
from txport.bundles.metadata import target_start
from txport.bundles.readme.page import comparisons
from txport.bundles.readme.tables import KINDS, dim_rows, port_rows
from txport.inspection.drawings import bar, flow, readable, text_of, treemap
from txport.inspection.kernels import COLUMNS, audits_or_why, rows, sentence
from txport.inspection.weights import Part, by_kind, parts_of
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.system.terminal import one_line
from txport.targets.ports import DECODER

MOST = 60  # rows of a table
LONGEST = 600  # characters of a sentence
CODE = re.compile(r"`([^`]+)`")
BOLD = re.compile(r"\*\*([^*]+)\*\*")
ESCAPED = re.compile(r"\\([\\`*_\[\]|#~])")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

TASKS = {"seq2seq": "sequence to sequence", "causal": "causal language model", "encode": "encoder"}
Row = Sequence[str]
STYLE = Path(__file__).with_name("page.css")


def page(bundle: Bundle) -> str:
    """Return the HTML page of a bundle, or of a folder exported by other tools; its files must match its manifest.

    The same bundle always has the same page.
    """
    manifest = bundle.manifest
    kind = f"{manifest.architecture} in" if isinstance(manifest, ForeignManifest) else manifest.target
    title = text_of(f"{manifest.checkpoint['name']}, {kind} {manifest.precision}")
    return document(title, _body(bundle, title))


def document(title: str, body: Iterable[str]) -> str:
    """Return a page with this style; the title and the parts of the body are HTML."""
    return PAGE.format(title=title, style=STYLE.read_text(encoding="utf-8"), body="\n".join(body))


def _body(bundle: Bundle, title: str) -> Iterator[str]:
    manifest = bundle.manifest
    yield f"<header><h1>{title}</h1>{_facts(bundle)}</header>"
    yield from _running(manifest)
    yield "<h2>Weights</h2>"
    yield from _weights(bundle)
    yield "<h2>Graphs</h2>"
    yield from _graphs(manifest)
    yield "<h2>Operators</h2>"
    yield _operators(bundle)
    yield from _kernels(bundle)
    if not isinstance(manifest, ForeignManifest):
        yield "<h2>Parity</h2>"
        yield _pairs({**comparisons(manifest), **_proof(manifest)})
    if manifest.generation:
        yield "<h2>Defaults of the checkpoint</h2>"
        yield _pairs(manifest.generation)
    if manifest.not_followed:
        yield "<h2>Generation options of the checkpoint that are not followed</h2>"
        yield _pairs(manifest.not_followed)
    yield "<h2>Ids and limits</h2>"
    yield _pairs(dict(_limits(manifest)))
    yield "<h2>Files</h2>"
    rows = [(_code(name), readable(each["bytes"]), _code(each["sha256"][:16])) for name, each in manifest.files.items()]
    yield table(["file", "size", "SHA-256 begins"], rows, numbers=(1,))
    if manifest.tools:
        tools = ", ".join(f"{name} {version}" for name, version in manifest.tools.items())
        yield f"<footer>Checkpoint SHA-256 {text_of(manifest.checkpoint['sha256'])}; made with {_text(tools)}.</footer>"


def _running(manifest: Manifest) -> Iterator[str]:
    """Yield the diagram and the notes; the README has the program."""
    yield f"<h2>How it runs</h2>{flow(manifest)}"
    yield f"<ul>{''.join(f'<li>{_marked(note)}</li>' for note in _notes(manifest))}</ul>"


def _notes(manifest: Manifest) -> list[str]:
    """Return how rows are batched, and commands or a page that say more, as Markdown."""
    if not isinstance(manifest, ForeignManifest):
        return ["docs/embedding.md of txport says how batches, beams, the best tokens and alignment are computed."]
    rows = "may stand in one batch, padded" if manifest.pads else "run apart, for its graphs take no padding"
    given = "AUDIO" if isinstance(manifest.facts.source, Features) else "TEXT"
    return [
        f"**Batches**: rows of unequal lengths {rows}.",
        f"**Commands**: `txport run FOLDER {given}` runs it.",
        "**Parity**: `txport parity FOLDER --checkpoint CHECKPOINT` compares it with PyTorch.",
    ]


def _made(manifest: Manifest) -> list[str]:
    """Return who made the graphs, for what, as short facts."""
    if not isinstance(manifest, ForeignManifest):
        return [f"architecture {manifest.architecture}", manifest.made_for.summary]
    variant = [f"variant {manifest.variant}"] if manifest.variant else []
    return ["exported by others", f"model_type {manifest.architecture}", f"layout: {manifest.layout}", *variant]


def _kind(manifest: Manifest, role: str) -> str:
    """Return the purpose of the graph of a role."""
    if LATER in manifest.graphs and role in (DECODER, LATER):
        return "the first step" if role == DECODER else "all steps but the first"
    return KINDS[role]


def _facts(bundle: Bundle) -> str:
    """Return the list of short facts in the header."""
    manifest = bundle.manifest
    before = manifest.checkpoint.get("quantised")
    measures = [f"quantised before: {before}"] if before else []
    measures += [manifest.described_precision, f"opset {manifest.opset}", readable(bundle.size)]
    description = [("", each) for each in (TASKS[manifest.facts.task], *_made(manifest), *measures)]
    if not isinstance(manifest, ForeignManifest):
        verdict = "not compared" if manifest.weightless else str(manifest.parity.get("verdict", "not compared"))
        description.append(({"pass": "pass", "fail": "fail", "FAIL": "fail"}.get(verdict, ""), f"parity: {verdict}"))
    items = "".join(f'<li class="{name}">{text_of(each)}</li>' for name, each in description)
    return f'<ul class="facts">{items}</ul>'


def _weights(bundle: Bundle) -> Iterator[str]:
    parts = parts_of(bundle)
    held = by_kind(parts)
    kinds = [kind for kind, _ in held.most_common()]
    total = held.total()
    most = max((part.bytes for part in parts), default=0)
    where = "would take" if bundle.manifest.weightless else "take"
    yield (
        f"<p>The weights {where} {readable(total)}. What several graphs read from one file counts once; what each "
        "holds itself counts in each.</p>"
    )
    swatch = '<svg viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" rx="2" class="k{}"/></svg>'
    legend = "".join(
        f"<li>{swatch.format(number % 6)}{text_of(kind)}: {readable(held[kind])}</li>"
        for number, kind in enumerate(kinds[:MOST])
    )
    yield f'<ul class="legend">{legend}</ul>'
    yield treemap(parts, kinds)
    rows = [(_code(part.name), bar(part, most, kinds), readable(part.bytes), _percent(part, total), str(part.tensors))
            for part in parts]  # fmt: skip
    yield table(["part", "", "size", "of all", "tensors"], rows, numbers=(2, 3, 4))


def _percent(part: Part, total: int) -> str:
    return f"{100 * part.bytes / total:.1f} %" if total else ""


def _graphs(manifest: Manifest) -> Iterator[str]:
    for role, graph in manifest.graphs.items():
        yield f"<h3>{_code(graph.file)}: {html.escape(_kind(manifest, role))}</h3>"
        rows = [
            (side, _code(name), text_of(dtype), _code(dims), _marked(description))
            for side, name, dtype, dims, description in port_rows(graph, manifest.facts)
        ]
        yield table(["", "port", "type", "dims", "what"], rows, first="")
    if dims := [(_code(name), _marked(description)) for name, description in dim_rows(manifest)]:
        yield "<h3>Names in these tables</h3>"
        yield table(["name", "what"], dims)


def _operators(bundle: Bundle) -> str:
    """Return a table of the number of nodes per operator in each graph, the most frequent first."""
    counts = {role: read_outline(bundle.file(role)).operators for role in bundle.manifest.graphs}
    names = sorted({name for each in counts.values() for name in each}, key=lambda name: (-_total(counts, name), name))
    rows = [(_code(name), *(str(each[name] or "") for each in counts.values())) for name in names]
    rows.insert(0, ("all", *(str(each.total()) for each in counts.values())))
    return table(["operator", *counts], rows, numbers=range(1, len(counts) + 1))


def _kernels(bundle: Bundle) -> Iterator[str]:
    """Yield the audit of each graph of a cuda bundle: the kernels that run it on a GPU."""
    if not bundle.manifest.made_for.on_gpu:
        return
    placed, why = audits_or_why(bundle)
    yield f"<h2>On CUDA</h2>{f'<p>{_text(why)}</p>' if why else ''}"
    for role, audit in placed.items():
        yield f"<h3>{_code(bundle.manifest.graphs[role].file)}</h3><p>{_text(sentence(audit))}</p>"
        yield table(COLUMNS, [(_code(name), *map(text_of, rest)) for name, *rest in rows(audit)], numbers=(2,))


def _total(counts: Mapping[str, Counter[str]], name: str) -> int:
    return sum(each[name] for each in counts.values())


def _proof(manifest: Manifest) -> dict[str, object]:
    found = {"runtimes": ", ".join(map(str, manifest.parity.get("runtimes", [])))} if manifest.parity else {}
    kept = manifest.kept_in_fp32
    return {**found, **({"wider forms": describe_kept(kept)} if kept else {})}


def _limits(manifest: Manifest) -> Iterator[tuple[str, object]]:
    facts: Facts = manifest.facts
    for side in ("source", "target"):
        values = getattr(facts, side)
        for name, value in vars(values).items() if values is not None else ():
            if value not in (None, (), []):
                yield f"{side} {name}", ", ".join(map(str, value)) if isinstance(value, tuple) else value
    if facts.is_encoder_decoder:
        yield "a target begins with", ", ".join(map(str, target_start(facts)))
    if facts.windows:
        yield "windows", ", ".join(map(str, facts.windows))
    if facts.labels:
        yield "labels", ", ".join(facts.labels)


def _pairs(values: dict[str, object]) -> str:
    rows = [(f"{text_of(name)}", _text(value)) for name, value in values.items()]
    return table([], rows, first="key")


def table(head: Sequence[str], rows: Iterable[Row], numbers: Sequence[int] = (), first: str = "name") -> str:
    """Return a table of cells that are HTML already: at most `MOST` rows, and the number of the others."""
    waiting = iter(rows)
    shown = list(islice(waiting, MOST))
    rest = sum(1 for _ in waiting)
    kinds = {0: first} | dict.fromkeys(numbers, "number")
    body = "".join(
        f"<tr>{''.join(_cell('td', kinds.get(at), cell) for at, cell in enumerate(row))}</tr>" for row in shown
    )
    cells = "".join(_cell("th", "number" if at in numbers else None, html.escape(cell)) for at, cell in enumerate(head))
    top = f"<thead><tr>{cells}</tr></thead>" if head else ""
    more = f'<p class="soft">and {rest} more</p>' if rest else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>{more}'


def _cell(tag: str, kind: str | None, content: str) -> str:
    return f"<{tag}{f' class={kind}' if kind else ''}>{content}</{tag}>"


def _code(text: str) -> str:
    return f"<code>{text_of(text)}</code>"


def _text(value: object) -> str:
    text = one_line(str(value))
    return html.escape(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


def _marked(text: str) -> str:
    """Convert one line of Markdown to HTML; supports code and bold text only."""
    found = html.escape(html.unescape(ESCAPED.sub(r"\1", _cut(text))), quote=False)
    return BOLD.sub(r"<strong>\1</strong>", CODE.sub(r"<code>\1</code>", found))


def _cut(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= 2 * LONGEST else text[: 2 * LONGEST - 1] + "…"
