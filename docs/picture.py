"""Draw docs/txport.svg, the picture of the README: `python -m docs.picture`."""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).with_name("txport.svg")
WIDTH, HEIGHT, BOX, HIGH, GAP = 760, 190, 160, 62, 40
INK, SOFT, LINE, ACCENT = "#1d2430", "#5b6675", "#8a95a3", "#2457c5"
STAGES = (
    ("checkpoint", "Hugging Face, your code"),
    ("export", "graphs with a cache"),
    ("bundle", "portable, cpu or cuda"),
    ("run", "Python, JavaScript, C++"),
)
PROOFS = ((1, "compared with PyTorch"), (3, "verified where it runs"))


def render() -> str:
    """Return the picture as SVG."""
    shapes = [shape for at, (name, note) in enumerate(STAGES) for shape in _stage(at, name, note)]
    shapes += [shape for at, proof in PROOFS for shape in _proof(at, proof)]
    label = "A checkpoint is exported to a bundle, which runs elsewhere; both steps are compared with PyTorch"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
        'font-family="system-ui, sans-serif" text-anchor="middle">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>', *shapes, "</svg>", ""])


def _left(at: int) -> int:
    return at * (BOX + GAP)


def _stage(at: int, name: str, note: str) -> list[str]:
    """Return a box with its words, and the arrow to the next box."""
    left, middle = _left(at), _left(at) + BOX // 2
    shapes = [
        f'<rect x="{left + 2}" y="20" width="{BOX - 4}" height="{HIGH}" rx="8" fill="#f5f7fa" stroke="{LINE}"/>',
        _text(middle, 46, 17, INK, name),
        _text(middle, 67, 12, SOFT, note),
    ]
    if at + 1 < len(STAGES):
        tip = _left(at + 1) - 4
        shapes.append(
            f'<path d="M{left + BOX + 4} 51H{tip}m-7-5 7 5-7 5" fill="none" stroke="{INK}" stroke-width="2"/>'
        )
    return shapes


def _proof(at: int, words: str) -> list[str]:
    """Return a proof, and the line from the stage that it checks."""
    middle = _left(at) + BOX // 2
    return [
        f'<path d="M{middle} 84V134" stroke="{ACCENT}" stroke-width="2" stroke-dasharray="4 4"/>',
        _text(middle, 154, 14, ACCENT, words),
    ]


def _text(x: int, y: int, size: int, colour: str, words: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}">{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(render(), encoding="utf-8")
