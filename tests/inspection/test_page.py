"""The page that `txport inspect --html` writes: whole, by itself, and nothing in it is a stranger's markup."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.bundles import drivers
from tests.tiny import reseal, update_hashes
from txport.bundles.bundle import Bundle, load_bundle
from txport.bundles.declared import read_initializers
from txport.bundles.graphs import read_outline
from txport.cli import cli
from txport.errors import BundleError
from txport.inspection.drawings import _squarified
from txport.inspection.page import page
from txport.inspection.weights import by_kind, part_of, parts_of
from txport.models.names import MANIFEST
from txport.system.documents import write_json
from txport.targets.ports import DECODER, ENCODER

EVIL = '"><img src=x onerror=alert(1)><script>alert(2)</script></style>&lt;'
VOID = {"meta", "path", "rect", "br"}
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "footer", "div", "p", "h1", "h2", "h3", "ol", "ul"),
    *("li", "code", "strong", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "defs", "marker", "path", "rect", "text", "title"),
}


class Whole(HTMLParser):
    """Holds that each tag is one of ours, is closed, and has no attribute that leads elsewhere or runs anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("src", "href", "action", "style", "xlink:href"), name
            assert "url(" not in (value or "") or value == "url(#tip)"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(text: str) -> str:
    """What a page says, once it is known to be whole and by itself."""
    parser = Whole()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert re.search(r"https?:|@import|url\((?!#tip\))", text) is None
    return " ".join(parser.words)


@pytest.mark.parametrize("case", ["seq2seq", "speech", "causal", "classify"])
@pytest.mark.parametrize(("target", "precision"), [("portable", "fp16"), ("cpu", "int8")])
def test_it_is_whole_and_shows_every_graph(case: str, target: str, precision: str, tmp_path: Path) -> None:
    bundle = drivers.made(case, target, precision, tmp_path)
    text = page(bundle)
    words = read(text)
    assert page(bundle) == text
    for graph in bundle.manifest.graphs.values():
        assert graph.file in words
    assert str(tmp_path) not in text
    for role in bundle.manifest.graphs:
        for name, count in read_outline(bundle.file(role)).operators.items():
            assert name in words
            assert str(count) in words
    if precision == "int8":
        assert ("8-bit blocks of 16" if bundle.manifest.facts.is_causal else "int8 invariant") in words


def test_sizes_are_those_of_the_files(bundle: Bundle) -> None:
    parts = parts_of(bundle)
    graphs = [onnx.load(str(bundle.file(role))).graph for role in bundle.manifest.graphs]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    sizes = [math.prod(each.dims) * onnx.helper.tensor_dtype_to_np_dtype(each.data_type).itemsize for each in tensors]
    assert sum(part.bytes for part in parts) == sum(sizes)
    assert sum(part.tensors for part in parts) == len(tensors)
    assert by_kind(parts).keys() == {"float32", "int64"}
    assert {"encoder.0", "encoder.1", "decoder.0", "decoder.1"} <= {part.name for part in parts}


def test_what_graphs_share_counts_once(tmp_path: Path) -> None:
    bundle = drivers.made("seq2seq", "cpu", "fp32", tmp_path)
    shared = sum(part.bytes for part in parts_of(bundle))
    every = sum(each.bytes for role in bundle.manifest.graphs for each in read_initializers(bundle.file(role)))
    assert shared < every
    assert shared <= sum(entry["bytes"] for entry in bundle.manifest.files.values())


@pytest.mark.parametrize(
    ("weight", "part"),
    [
        ("decoder.2.attention.query.weight", "decoder.2"),
        ("encoder.layers.11.norm.bias", "encoder.layers.11"),
        ("projection.weight", "projection"),
        ("weight", "weight"),
        ("", ""),
    ],
)
def test_parts_are_layers_and_modules(weight: str, part: str) -> None:
    assert part_of(weight) == part


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=40))
def test_areas_fill_the_map_and_keep_their_shares(sizes: list[float]) -> None:
    sizes.sort(reverse=True)
    areas = [size * 720 * 300 / sum(sizes) for size in sizes]
    boxes = _squarified(areas, 0.0, 0.0, 720.0, 300.0)
    for (x, y, width, tall), area in zip(boxes, areas, strict=True):
        assert width * tall == pytest.approx(area, rel=1e-6)
        assert x >= 0
        assert y >= 0
        assert x + width <= 720.001
        assert y + tall <= 300.001


def test_no_name_of_a_stranger_is_markup(copied: Path) -> None:
    bundle = load_bundle(copied)
    for role in (ENCODER, DECODER):
        model = onnx.load(str(bundle.file(role)))
        tensor = next(each for each in model.graph.initializer if each.name == "projection.weight")
        for node in model.graph.node:
            node.input[:] = [EVIL if name == tensor.name else name for name in node.input]
        tensor.name = EVIL
        model.graph.node.add(op_type=EVIL, domain=EVIL, input=["a"], output=["b"])
        onnx.save(model, str(bundle.file(role)))
    (copied / EVIL.translate(str.maketrans("", "", '"<>/*?:|\\'))).write_text("x", encoding="utf-8")
    values = json.loads((copied / MANIFEST).read_text(encoding="utf-8"))
    values["checkpoint"]["name"] = values["tools"][EVIL] = EVIL
    values["generation"] = {EVIL: [EVIL, "\x1b[31m"]}
    values["parity"] |= {"verdict": EVIL, "runtimes": [EVIL], "cases": EVIL}
    write_json(copied / MANIFEST, values)
    for graph in bundle.manifest.graphs.values():
        model = onnx.load(str(copied / graph.file))
        model.ClearField("metadata_props")
        onnx.save(model, str(copied / graph.file))
    words = read(page(reseal(copied)))
    assert "alert(1)" in words  # as text
    assert "\x1b" not in words


@given(seed=st.integers(0, 10_000))
def test_damaged_graphs_are_refused_if_at_all(
    seed: int, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    whole = bytearray(bundle.file(ENCODER).read_bytes())
    for _ in range(rng.randint(1, 5)):
        whole[rng.randrange(min(len(whole), 4000)) if rng.random() < 0.7 else rng.randrange(len(whole))] = (
            rng.randrange(256)
        )
    path = tmp_path_factory.mktemp("damaged") / "graph.onnx"
    path.write_bytes(whole[: rng.randrange(1, len(whole))] if rng.random() < 0.3 else whole)
    for read_file in (read_initializers, read_outline):
        with contextlib.suppress(BundleError):  # and nothing else
            read_file(path)


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *(str(each) for each in arguments)])


def test_the_command_writes_it(bundle: Bundle, tmp_path: Path) -> None:
    done = inspect(bundle.path, "--brief", "--html", tmp_path / "page.html")
    assert done.exit_code == 0
    assert "parity with PyTorch" in done.output
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(bundle)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_damaged_bundle_has_no_page(copied: Path, tmp_path: Path) -> None:
    (copied / "onnx" / "encoder_model.onnx").write_bytes(b"nothing")
    update_hashes(copied)
    assert isinstance(inspect(copied, "--html", tmp_path / "page.html").exception, BundleError)
    assert not (tmp_path / "page.html").exists()


def test_a_tensor_of_an_unknown_type_has_no_bytes(copied: Path) -> None:
    file = load_bundle(copied).file(ENCODER)
    model = onnx.load(str(file))
    model.graph.initializer[0].data_type = 99
    onnx.save(model, str(file))
    assert "other: 0 B" in read(page(reseal(copied)))
