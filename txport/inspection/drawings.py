"""The drawings of the page, as SVG with the page's colours and fonts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from txport.bundles.foreign.files import LATER
from txport.bundles.manifest import Manifest
from txport.inspection.weights import Part
from txport.models.audio import Features
from txport.system.terminal import one_line
from txport.targets.ports import DECODER, ENCODER, MODEL, PREFILL, SELECT, STEP, Graph

LONGEST = 60  # characters of a name
WIDTH, BOX, ARROW, EDGE = 440, 220, 34, 12  # of the diagram
ROOM = 28  # characters that fit in a box; longer labels are condensed
MIDDLE = WIDTH // 2
REACH = 28
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" class="tip"/></marker></defs>'
)
CHART, GAP = 720, 2


def text_of(value: object) -> str:
    """Return a value as HTML text in one line of at most `LONGEST` characters."""
    text = one_line(str(value))
    return html.escape(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


class Stop(NamedTuple):
    """One row of the diagram: a graph, an input or an output; `over` labels the arrow that leads to it."""

    label: str
    note: str = ""
    over: str = ""
    file: str = ""


def flow(manifest: Manifest) -> str:
    """Return the diagram, as SVG, of how values go from graph to graph and from step to step, from top to bottom."""
    stops = list(_stops(manifest))
    tops = [EDGE + sum(_high(each) + ARROW for each in stops[:number]) for number in range(len(stops) + 1)]
    shapes = [shape for stop, top in zip(stops, tops, strict=False) for shape in _stop(stop, top)]
    if manifest.facts.generates:
        at = next(number for number, stop in enumerate(stops) if stop.file in _running(manifest))
        shapes += _loops(manifest, tops[at], tops[-3])
    height = tops[-1] - ARROW + EDGE
    label = "how values go from graph to graph and from step to step"
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}" class="flow">'
    return f"{head}{TIP}{''.join(shapes)}</svg>"


def _running(manifest: Manifest) -> set[str]:
    """Return the file of the graph that each step runs, as a set of one."""
    role = next(role for role in (STEP, LATER, DECODER) if role in manifest.graphs)
    return {manifest.graphs[role].file}


def _stops(manifest: Manifest) -> Iterator[Stop]:
    graphs = manifest.graphs
    facts = manifest.facts
    stepping = STEP in manifest.graphs
    each = "once a token" if _has_past(manifest) else "once a token, over all so far"
    if not facts.generates:
        yield Stop("ids of a text")
        yield _graph(graphs[MODEL], "once a text", "input_ids")
        yield Stop(", ".join(each.name for each in facts.outputs))
        return
    if facts.is_causal:
        yield Stop("ids of a prompt")
        if PREFILL in graphs:
            yield _graph(graphs[PREFILL], "once a prompt", "all ids but the last")
            yield _graph(graphs[STEP], "once a token", "caches, and the last id")
        elif stepping:
            yield _graph(graphs[STEP], "the prompt, then once a token", "input_ids")
        elif LATER in graphs:
            yield _graph(graphs[DECODER], "the prompt", "input_ids")
        else:
            first = "the prompt, then once a token" if _has_past(manifest) else each
            yield _graph(graphs[DECODER], first, "input_ids")
    else:
        features = isinstance(facts.source, Features)
        yield Stop("log-mel features" if features else "ids of a source")
        yield _graph(graphs[ENCODER], "once a source", "input_features" if features else "input_ids")
        over = "cross.L.key, cross.L.value" if stepping else "last_hidden_state"
        yield _graph(graphs[STEP if stepping else DECODER], "the first token" if LATER in graphs else each, over)
    if LATER in graphs:
        yield _graph(graphs[LATER], "once a token after it", "present.L.key, present.L.value")
    yield Stop("the next token", "the likeliest, or drawn", "logits")
    yield Stop("an end token: done")


def _has_past(manifest: Manifest) -> bool:
    """Whether a graph keeps a state from step to step."""
    return any(graph.past() for graph in manifest.graphs.values())


def _graph(graph: Graph, note: str, over: str) -> Stop:
    return Stop(graph.file.rpartition("/")[2], note, over, graph.file)


def _high(stop: Stop) -> int:
    return 46 if stop.note else 30


def _stop(stop: Stop, top: int) -> Iterator[str]:
    """Yield the shapes of a box and of the arrow that leads to it from above."""
    left = MIDDLE - BOX // 2
    high = _high(stop)
    kind, corner = ("graph", 6) if stop.file else ("value", 15)
    if top > EDGE:
        yield f'<path d="M{MIDDLE} {top - ARROW}V{top - 1}" class="arrow" marker-end="url(#tip)"/>'
    if stop.over:
        yield f'<text x="{MIDDLE + 9}" y="{top - ARROW // 2 + 3}" class="small">{text_of(stop.over)}</text>'
    yield f'<rect x="{left}" y="{top}" width="{BOX}" height="{high}" rx="{corner}" class="{kind}"/>'
    fit = f' textLength="{BOX - 12}" lengthAdjust="spacingAndGlyphs"' if len(stop.label) > ROOM else ""
    yield f'<text x="{MIDDLE}" y="{top + 20}" text-anchor="middle"{fit}>{text_of(stop.label)}</text>'
    if stop.note:
        yield f'<text x="{MIDDLE}" y="{top + 37}" text-anchor="middle" class="small">{text_of(stop.note)}</text>'


def _loops(manifest: Manifest, top: int, chosen: int) -> Iterator[str]:
    """Yield the arrows back to the step: the state at the left, the chosen token at the right."""
    left = MIDDLE - BOX // 2
    right = MIDDLE + BOX // 2
    lines = []
    if _has_past(manifest):
        state = f"M{left} {top + 36}H{left - REACH}V{top + 12}H{left - 1}"
        yield f'<path d="{state}" class="arrow state" marker-end="url(#tip)"/>'
        lines = [(top + 14, "present"), (top + 28, "becomes"), (top + 42, "past")]
    lines += [(top + 62, "select_rows"), (top + 76, "for beams")] if SELECT in manifest.graphs else []
    for y, line in lines:
        yield f'<text x="{left - REACH - 6}" y="{y}" text-anchor="end" class="small">{line}</text>'
    back = f"M{right} {chosen + 23}H{right + REACH}V{top + 23}H{right + 1}"
    yield f'<path d="{back}" class="arrow" marker-end="url(#tip)"/>'
    yield f'<text x="{right + REACH + 6}" y="{(chosen + top) // 2 + 27}" class="small">input_ids</text>'


def treemap(parts: Sequence[Part], kinds: Sequence[str], height: int = 300) -> str:
    """Return a treemap of the parts, as SVG: area is size in bytes, colour is the storage form of most of a part."""
    sized = sorted((part for part in parts if part.bytes), key=lambda part: -part.bytes)
    total = sum(part.bytes for part in sized)
    if not total:
        return ""
    boxes = _squarified([part.bytes * CHART * height / total for part in sized], 0.0, 0.0, float(CHART), float(height))
    shapes = []
    for part, (x, y, width, tall) in zip(sized, boxes, strict=True):
        colour = kinds.index(part.held.most_common(1)[0][0]) % COLOURS
        title = f"{text_of(part.name)}: {readable(part.bytes)}"
        shapes.append(
            f'<g><title>{title}</title><rect x="{x + GAP / 2:.1f}" y="{y + GAP / 2:.1f}" rx="3" '
            f'width="{max(0.0, width - GAP):.1f}" height="{max(0.0, tall - GAP):.1f}" class="k{colour}"/>'
            f"{_inside(part, x, y, width, tall)}</g>"
        )
    label = "weights by part: the larger the area, the more bytes"
    return f'<svg viewBox="0 0 {CHART} {height}" role="img" aria-label="{label}" class="map">{"".join(shapes)}</svg>'


COLOURS = 6


def _inside(part: Part, x: float, y: float, width: float, tall: float) -> str:
    """Return the labels in a part's rectangle: its name and its size, if they fit."""
    room = int((width - 12) / 7.2)
    name = one_line(part.name)
    if room < 4 or tall < 20:
        return ""
    name = name if len(name) <= room else name[: room - 1] + "…"
    size = ""
    if tall >= 38 and room >= 7:
        size = f'<text x="{x + 7:.1f}" y="{y + 34:.1f}" class="inner small">{readable(part.bytes)}</text>'
    return f'<text x="{x + 7:.1f}" y="{y + 18:.1f}" class="inner">{html.escape(name)}</text>{size}'


def _squarified(areas: Sequence[float], x: float, y: float, width: float, tall: float) -> list[tuple[float, ...]]:
    """Split a rectangle into near-square ones of these areas, which are in descending order: (x, y, width, height).

    Squarified treemap (Bruls, Huizing and van Wijk 2000).
    """
    found: list[tuple[float, ...]] = []
    rest = list(areas)
    while rest:
        side = min(width, tall)
        count = 1
        while count < len(rest) and _worst(rest[: count + 1], side) <= _worst(rest[:count], side):
            count += 1
        row = rest[:count]
        rest = rest[count:]
        thick = sum(row) / side if side else 0.0
        along = 0.0
        for area in row:
            length = area / thick if thick else 0.0
            is_tall = width >= tall
            found.append((x, y + along, thick, length) if is_tall else (x + along, y, length, thick))
            along += length
        if width >= tall:
            x = x + thick
            width = width - thick
        else:
            y = y + thick
            tall = tall - thick
    return found


def _worst(row: Sequence[float], side: float) -> float:
    """Return the largest aspect ratio among the rectangles of a row along a side."""
    total = sum(row)
    if not total or not side or not row[-1]:
        return float("inf")
    return max(side**2 * row[0] / total**2, total**2 / (side**2 * row[-1]))


def bar(part: Part, largest: int, kinds: Sequence[str]) -> str:
    """Return the bytes of a part as a bar, as SVG, with a colour per storage form."""
    shapes = []
    x = 0.0
    for kind, size in sorted(part.held.items(), key=lambda each: kinds.index(each[0])):
        width = 100 * size / largest if largest else 0.0
        shapes.append(f'<rect x="{x:.2f}" width="{width:.2f}" height="10" class="k{kinds.index(kind) % COLOURS}"/>')
        x += width
    head = '<svg viewBox="0 0 100 10" preserveAspectRatio="none" class="bar" aria-hidden="true">'
    return f"{head}{''.join(shapes)}</svg>"


def readable(size: float) -> str:
    """Format a number of bytes, such as `1.23 GB`."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.3g} {unit}"
    return f"{size:.0f} B"
