"""Bundles of adapters run as all others do, are proven as they are, and say what is known of them and what is not."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import txport
from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.called import Cli
from tests.checkpoints.adapters import modules
from tests.tiny import VOCABULARY, edit_graph
from txport import adapters
from txport.api.release import bisect, load_checkpoint, parity
from txport.bench import measure as bench
from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_model
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import CheckpointError, ParityError, UnsupportedError
from txport.proof.verify.check import verify
from txport.targets.ports import DECODER, MODEL

Invoke = Callable[..., tuple[int, str]]
SOURCES = [[5, 6, 7, 2], [9, 2], [11, 12, 13, 14, 15, 16, 17, 18, 2]]
ORT = {"ort": "cpu"}


@pytest.fixture
def invoke(call: Cli) -> Invoke:
    """Run a command: -> how it ended, and what it wrote: results, or else the error."""

    def run(*arguments: object) -> tuple[int, str]:
        code, out, err = call(*arguments)
        return code, err if code else out

    return run


def by_torch(checkpoint: Checkpoint, source: list[int], count: int) -> list[int]:
    """Greedy search in float64, all computed anew each time."""
    model = copy.deepcopy(checkpoint.model).double()
    found = list[int]()
    for _ in range(count):
        if model.facts.task == "causal":
            ids = torch.tensor([source + found])
            places = torch.arange(ids.shape[1])[None]
            logits = model.extend(ids, torch.ones_like(ids).bool(), places, model.empty_state(1)).logits
        else:
            start = model.facts.writes.start
            logits = model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[start, *found]]))
        found.append(int(logits[0, -1].argmax()))
        if found[-1] in model.facts.writes.ends:
            break
    return found


def checkpoint_of(name: str, example: Path) -> Checkpoint:
    if name == "translator":
        return load_checkpoint(f"{example}:ADAPTER", trust_code=True)
    adapter = {"alibi": modules.ALIBI, "tutorial": modules.TUTORIAL}[name]
    assert adapter.load is not None
    return load_checkpoint(adapter.load(), adapter=adapter)


@pytest.mark.parametrize("name", ["translator", "alibi", "tutorial"])
def test_models_that_generate_find_what_pytorch_does(
    name: str, example: Path, request: pytest.FixtureRequest, invoke: Invoke
) -> None:
    """Alone, in batches, by beams and as a stream, from ids and on the command line."""
    bundle: Bundle = request.getfixturevalue(name)
    assert bundle.manifest.parity["verdict"] == "pass"
    assert verify(bundle.path).passed
    assert verify(bundle.path, runtime="openvino").passed
    model = txport.load(bundle.path)
    checkpoint = checkpoint_of(name, example)
    expected = [by_torch(checkpoint, source, 6) for source in SOURCES]
    found = model.search(SOURCES, max_new_tokens=6, batch_size=2)
    assert [list(each[0].tokens) for each in found] == expected
    texts = [" ".join(map(str, source)) for source in SOURCES]
    assert len(model.search(SOURCES, beams=3, nbest=2, max_new_tokens=4)[0]) == 2
    with pytest.raises(UnsupportedError, match="continuous batching needs a cpu or cuda bundle"):
        model.search(SOURCES, continuous=True)
    code, said = invoke("run", bundle.path, "--ids", "--max-new-tokens", 6, *texts)
    assert (code, [list(map(int, line.split())) for line in said.splitlines()]) == (0, expected)
    code, said = invoke("run", bundle.path, "--ids", "--stream", "--max-new-tokens", 6, texts[0])
    assert (code, list(map(int, said.split()))) == (0, expected[0])


def test_a_model_that_encodes_gives_labels_in_fp16(classifier: Bundle) -> None:
    assert classifier.manifest.parity["verdict"] == "pass"
    assert verify(classifier.path).passed
    model = txport.load(classifier.path)
    module = modules.load_classifier().eval()
    for source in SOURCES:
        ids = np.array([source])
        found = model.runtime.infer(ids, np.array([len(source)]))["logits"]  # type: ignore[attr-defined]
        with torch.no_grad():
            right = module(torch.from_numpy(ids), torch.ones(1, len(source)).bool())
        assert np.abs(found - right.numpy()).max() < 1e-2
    described = json.loads((classifier.path / "config.json").read_text(encoding="utf-8"))
    assert described["id2label"] == {"0": "good", "1": "bad", "2": "so-so"}
    assert described["problem_type"] == "single_label_classification"


def test_no_fp16_product_reads_what_onnx_runtime_would_crash_on(classifier: Bundle) -> None:
    """A transpose of the leading dims right before a product, as PyTorch's own encoder layers have it."""
    graph = read_model(classifier.file(MODEL)).graph
    made = {node.output[0]: node for node in graph.node}
    read = [made[name] for node in graph.node if node.op_type == "MatMul" for name in node.input if name in made]
    perms = [list(node.attribute[0].ints) for node in read if node.op_type == "Transpose"]
    assert [1, 0] in perms  # of weights, which is no such thing
    assert [1, 0, 2] not in perms
    assert [1, 0, 2] in [list(node.attribute[0].ints) for node in graph.node if node.op_type == "Transpose"]


def test_weights_keep_their_names_and_nothing_tells_of_the_machine(alibi: Bundle, tmp_path: Path) -> None:
    names = {tensor.name for tensor in read_model(alibi.file(DECODER)).graph.initializer}
    module = modules.load_alibi()
    used = {name for name, _ in module.named_parameters() if "training" not in name}
    assert names >= used - {"words.weight"}
    assert "words.weight" not in names  # it is tied to out.weight, and held once
    assert alibi.manifest.parity["unused"] == ["head_for_training.bias", "head_for_training.weight"]
    assert len(alibi.manifest.parity["computed"]) == 1  # the slopes
    assert alibi.manifest.architecture == "adapter"
    assert alibi.manifest.config == {"module": "Alibi"}
    assert str(Path(__file__).parents[3]).encode() not in alibi.file(DECODER).read_bytes()


def test_the_command_line_exports_code_only_if_it_is_trusted(example: Path, tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "model.py").write_text("raise SystemError('it ran')", encoding="utf-8")
    name = f"{tmp_path / 'model.py'}:ADAPTER"
    for command in (
        ("export", name, tmp_path / "out"),
        ("matrix", name),
        ("export", f"{example}:ADAPTER", tmp_path / "o"),
    ):
        code, said = invoke(*command)
        assert (code, said.count("\n")) == (2, 1)
        assert "is code, which runs only if you trust it: give --trust-code" in said
    code, said = invoke("export", name, tmp_path / "out", "--trust-code")
    assert code == 2
    assert "does not run: SystemError: it ran (model.py, line 1)" in said
    assert invoke("export", "g2p-en", tmp_path / "out", "--trust-code")[0] == 2
    assert not (tmp_path / "out").exists()


def test_each_file_of_code_imports_what_lies_beside_it(tmp_path: Path) -> None:
    """Two experiments have a `net.py` each; `load` may import it, too."""
    text = (
        "from tests.checkpoints.adapters.modules import *\n{first}\ndef load():\n    {later}\n    return made()\n"
        "ADAPTER = adapters.encoder(tokens=TOKENS, width=2, encode=lambda net, ids, mask: net(ids), load=load)\n"
    )
    made = "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    made += "        self.words = torch.nn.Embedding(30, 2)\n        self.words.weight.data.fill_({number})\n"
    made += "    def forward(self, ids): return self.words(ids)\ndef made(): return Net()\n"
    line = "from a_net_of_its_own import made"
    for number, lines in enumerate([(line, "pass"), (line, "pass"), ("", line)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a_net_of_its_own.py").write_text(made.format(number=number), encoding="utf-8")
        (folder / "model.py").write_text(text.format(first=lines[0], later=lines[1]), encoding="utf-8")
        found = load_checkpoint(f"{folder / 'model.py'}:ADAPTER", trust_code=True)
        assert {float(each[0, 0]) for _, each in found.tensors} == {number}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "ADAPTER of {path} must be an adapter of txport.adapters, and is not there"),
        ("ADAPTER = 7", "must be an adapter of txport.adapters, and is a int"),
        ("import no_such_package", "{path} does not run: ModuleNotFoundError"),
        ("raise SystemExit(0)", "{path} does not run: SystemExit: 0 (model.py, line 1)"),
        (
            "from tests.checkpoints.adapters.modules import *\nimport torch\ndef encode(*given): raise SystemExit(0)\n"
            "ADAPTER = adapters.encoder(tokens=TOKENS, width=4, encode=encode, load=lambda: torch.nn.Linear(2, 2))",
            "encode of Linear fails in torch.float32: SystemExit: 0 (model.py, line 3)",
        ),
        ("def f(:", "{path} does not run: SyntaxError"),
        ("from tests.checkpoints.adapters.modules import *\nADAPTER = encoder_of(classify)", "needs load, a function"),
        ("from beside import ADAPTER", "load of {path} fails: ZeroDivisionError: division by zero (beside.py, line 2)"),
    ],
)
def test_a_file_of_code_that_is_wrong_is_told_in_a_line(tmp_path: Path, text: str, told: str, invoke: Invoke) -> None:
    path = tmp_path / "model.py"
    path.write_text(text, encoding="utf-8")
    (tmp_path / "beside.py").write_text(
        "from tests.checkpoints.adapters.modules import *\ndef load(): return 1 / 0\n"
        "ADAPTER = adapters.encoder(tokens=TOKENS, width=4, encode=classify, load=load)",
        encoding="utf-8",
    )
    code, said = invoke("export", f"{path}:ADAPTER", tmp_path / "out", "--trust-code")
    assert (code, said.count("\n")) == (2, 1)
    assert told.format(path=path) in said


def test_parity_and_bisect_name_a_weight_that_was_altered(
    translator: Bundle, example: Path, tmp_path: Path, invoke: Invoke
) -> None:
    code, said = invoke("parity", translator.path, "--checkpoint", f"{example}:ADAPTER", "--trust-code", "--bisect")
    assert code == 0, said
    assert invoke("parity", translator.path, "--checkpoint", f"{example}:ADAPTER")[0] == 2
    path = Path(shutil.copytree(translator.path, tmp_path / "bundle"))

    def alter(model: onnx.ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name == "decoder.0.own.value.weight")
        values = onnx.numpy_helper.to_array(tensor) * np.float32(1.5)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))

    altered = edit_graph(path, DECODER, alter)
    report = parity(altered, f"{example}:ADAPTER", ORT, trust_code=True)
    assert not report.passed
    assert "decoder.0.own.value.weight" in report.describe_worst()
    culprit = bisect(altered, f"{example}:ADAPTER", trust_code=True)
    assert culprit is not None
    assert culprit.where == "the weight decoder.0.own.value.weight"


def test_bisect_names_an_output_where_no_weight_is_wrong(alibi: Bundle, tmp_path: Path) -> None:
    path = Path(shutil.copytree(alibi.path, tmp_path / "bundle"))

    def alter(model: onnx.ModelProto) -> None:
        softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
        softmax.op_type = "LogSoftmax"

    culprit = bisect(edit_graph(path, DECODER, alter), modules.load_alibi(), adapter=modules.ALIBI)
    assert culprit is not None
    assert (culprit.graph, culprit.kind) == (DECODER, "output")
    assert "no parts that are known" in culprit.what


def test_another_line_of_code_is_another_checkpoint(translator: Bundle, example: Path, tmp_path: Path) -> None:
    other = tmp_path / "model.py"
    other.write_text(example.read_text(encoding="utf-8").replace("nn.GELU()", "nn.ReLU()"), encoding="utf-8")
    with pytest.raises(UnsupportedError, match=r"was not made from this model\.py:ADAPTER: their hashes differ"):
        parity(translator, f"{other}:ADAPTER", ORT, trust_code=True)


def test_an_if_on_an_empty_cache_is_found_and_told_as_what_it_is(tmp_path: Path) -> None:
    """It is right in PyTorch, and a trace takes one of its ways for good."""

    def step(model: Any, inputs: Any) -> Any:
        past = inputs.past[0][0]
        x = model.words(inputs.ids)
        if past.shape[2] > 0:
            x = x * torch.ones(past.shape[2]).sum().clamp(max=1.0)  # 1, but 0 of nothing at all
        keys = torch.cat([past, x[:, None]], 2)
        return model.mix(x), [(keys, keys)]

    tokens = dataclasses.replace(modules.TOKENS, size=modules.SIZE)
    adapter = adapters.causal(tokens=tokens, width=modules.SIZE, caches=[adapters.Cache(1, modules.SIZE)], step=step)
    with pytest.raises(ParityError, match="at the lengths of its trace it is right") as found:
        txport.export(modules.seeded(modules.Tagger), tmp_path / "out", adapter=adapter)
    assert "without an `if` on one (on an empty cache, say)" in str(found.value)
    assert not (tmp_path / "out").exists()


def test_a_prompt_without_caches_is_computed_anew_behind_any_padding(tmp_path: Path) -> None:
    """Places are found again for all tokens so far, and padding is masked among them."""

    def step(model: Any, inputs: Any) -> Any:
        x = model.words(inputs.ids) + torch.sin(inputs.positions.to(model.words.weight.dtype))[:, :, None]
        return modules.attend(model, x[:, None], inputs.seen)[:, 0]

    tokens = dataclasses.replace(modules.TOKENS, size=modules.SIZE)
    adapter = adapters.causal(tokens=tokens, width=modules.SIZE, step=step)
    module = modules.seeded(modules.Tagger)
    bundle = txport.export(module, tmp_path / "out", adapter=adapter)
    prompts = [[each % modules.SIZE for each in source] for source in SOURCES]
    expected = [by_torch(load_checkpoint(module, adapter=adapter), prompt, 5) for prompt in prompts]
    found = txport.load(bundle.path).search(prompts, max_new_tokens=5)
    assert [list(each[0].tokens) for each in found] == expected


def test_a_kernel_that_knows_only_fp32_is_proven_against_fp32_and_reads_text(tmp_path: Path, invoke: Invoke) -> None:
    """With a tokenizer of its own; the report and the manifest say what the reference was."""

    def encode(model: Any, ids: Any, mask: Any) -> Any:
        x = model.words(ids)
        if x.dtype == torch.float64:
            raise RuntimeError("my_kernel is not implemented for 'Double'")
        return model.mix(x)

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "tokenizer.json").write_text(spelling_tokenizer(VOCABULARY), encoding="utf-8")
    tokens = adapters.Tokens(size=modules.WORDS, longest=modules.LONGEST, pad=0, after=(2,))
    adapter = adapters.encoder(tokens=tokens, width=modules.SIZE, encode=encode, folder=tmp_path / "text")
    module = modules.seeded(modules.Tagger)
    told = list[str]()
    bundle = txport.export(module, tmp_path / "out", adapter=adapter, progress=told.append)
    assert any("held against PyTorch in fp32" in line and "my_kernel" in line for line in told)
    assert "my_kernel is not implemented for 'Double'" in bundle.manifest.parity["reference"]
    code, said = invoke("inspect", bundle.path, "--brief")
    assert code == 0
    assert "my_kernel" in said.replace("\n", " ")
    model = txport.load(bundle.path)
    ids = torch.tensor([model.encode("bad")])
    with torch.no_grad():
        right = module.mix(module.words(ids))[0].mean(0)
    assert np.allclose(next(iter(model.embed("bad"))), right, atol=1e-5)
    shutil.rmtree(tmp_path / "text")
    with pytest.raises(CheckpointError, match="there is no folder"):
        load_checkpoint(module, adapter=adapter)


def test_the_cpu_target_and_few_bits_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="portable target only: the cpu target makes operators of parts"):
        txport.export(modules.load_alibi(), tmp_path / "out", adapter=modules.ALIBI, target="cpu")
    with pytest.raises(UnsupportedError, match="int8 quantises parts that txport knows, and your module has none"):
        txport.export(modules.load_alibi(), tmp_path / "out", adapter=modules.ALIBI, precision="int8")


def test_the_torch_runtime_and_bench_run_the_module_itself(translator: Bundle, example: Path) -> None:
    name = f"{example}:ADAPTER"
    model = txport.load(translator.path, runtime="torch", checkpoint=name, trust_code=True)
    ours, other = (each.search(SOURCES, max_new_tokens=6) for each in (model, txport.load(translator.path)))
    assert [each[0].tokens for each in ours] == [each[0].tokens for each in other]
    with pytest.raises(UnsupportedError, match="ort does not run user code"):
        txport.load(translator.path, trust_code=True)
    plan = bench.Plan(rounds=3, tokens=(4,), source=(4,), batch=(1,), inputs=2, starts=1)
    found = bench.candidates([("translator", translator)], ["torch", "ort"], name)
    result = bench.run(found, plan, trust_code=True)
    assert set(result["sizes"][0]["equal tokens"].values()) == {1.0}
    with pytest.raises(UnsupportedError, match="is a file and its adapter"):
        bench.run(bench.candidates([("translator", translator)], ["torch"], "g2p-en"), plan, trust_code=True)
