"""The files of examples/serving are such as Kubernetes, Docker, Prometheus and Triton take, and fit the service."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import pytest
import yaml
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families

import txport
from tests.serving.service.served import metric, wait_for
from tests.serving.service.test_life import BODY, asking
from tests.test_docs import require_options
from txport.serving.service.guards import OPEN

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "serving"
FILES = ("grafana.json", "kubernetes.yaml", "prometheus-adapter.yaml")
REASON = "`make serve-test` has it"
KUBERNETES = "1.34"  # the version whose schemas hold
TYPES = {"tensor(int64)": "TYPE_INT64", "tensor(int32)": "TYPE_INT32", "tensor(float)": "TYPE_FP32"}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def pods() -> dict[str, Any]:
    """The specs of pods, of Kubernetes and of KServe, whose other keys are KServe's own."""
    deployment = next(each for each in documents("kubernetes.yaml") if each["kind"] == "Deployment")
    predictor = documents("kserve.yaml")[0]["spec"]["predictor"]
    own = ("minReplicas", "maxReplicas")
    return {
        "kubernetes": deployment["spec"]["template"]["spec"],
        "kserve": {key: value for key, value in predictor.items() if key not in own},
    }


def test_manifests_fit_the_schemas_of_kubernetes() -> None:
    checker = pytest.importorskip("kubernetes_validate", reason=REASON)
    alone = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": each} for each in pods().values()]
    for each in (*documents("kubernetes.yaml"), *alone):
        checker.validate(each, KUBERNETES, strict=True)
    with pytest.raises(checker.ValidationError):
        checker.validate({**alone[0], "spec": {**alone[0]["spec"], "container": []}}, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", ["kubernetes", "kserve"])
def test_a_pod_fits_the_service(name: str) -> None:
    pod = pods()[name]
    (container,) = pod["containers"]
    require_options("serve", container["args"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN
    ends = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0) + 60  # --drain
    assert pod["terminationGracePeriodSeconds"] > ends


def test_the_images_pass_hadolint_and_run_the_service() -> None:
    files = [FOLDER / name for name in ("Dockerfile", "Dockerfile.cuda")]
    for file in files:
        start, usual = (
            json.loads(re.findall(rf"^{word} (\[.*\])$", file.read_text("utf-8"), re.MULTILINE)[0])
            for word in ("ENTRYPOINT", "CMD")
        )
        assert start[:2] == ["txport", "serve"]
        require_options("serve", [*start[2:], *usual])
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip(REASON)
    done = subprocess.run([hadolint, "--strict-labels", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_for_cpus_has_all_packages_but_that_for_gpus() -> None:
    """On any platform: markers are gone."""
    command = [sys.executable, FOLDER / "requirements.py", ROOT / "pyproject.toml", "serve"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {Requirement(line).name for line in lines}
    assert found >= {"onnxruntime", "numpy", "tokenizers", "starlette", "uvicorn"}
    assert "onnxruntime-gpu" not in found
    assert all(Requirement(line).marker is None for line in lines)


def test_compose_mounts_files_that_exist_and_runs_the_service() -> None:
    (compose,) = documents("compose.yaml")
    require_options("serve", compose["services"]["txport"]["command"])
    mounted = [
        each.split(":")[0] for name in ("prometheus", "grafana") for each in compose["services"][name]["volumes"]
    ]
    assert all((FOLDER / place).is_file() for place in mounted)
    for config in compose["configs"].values():
        assert yaml.safe_load(config["content"])["apiVersion"] == 1
    (targets,) = documents("prometheus.yaml")[0]["scrape_configs"][0]["static_configs"]
    assert targets["targets"] == ["txport:8000"]


def test_every_metric_is_one_that_the_service_prints(http: httpx.Client) -> None:
    """And so is every label by which a query groups."""
    http.post("/translate", json={"model": "spell", "text": "bad"}).raise_for_status()
    http.post("/v1/completions", json={"model": "chat", "prompt": "Hello", "max_tokens": 2, "n": 99})
    asking(str(http.base_url), BODY).close()  # a caller that goes away
    wait_for(lambda: metric(http, "txport:request_cancelled_total"))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    for file in FILES:
        text = (FOLDER / file).read_text(encoding="utf-8").replace("txport_num", "txport:num")  # the adapter renames
        names = set(re.findall(r"txport:[a-z]+_\w+", text))
        assert names
        assert names <= found.keys()
    dashboard = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    for query in (target["expr"] for panel in dashboard["panels"] for target in panel["targets"]):
        (name,) = re.findall(r"txport:\w+", query)
        labels = [word for group in re.findall(r"by \(([^)]*)\)", query) for word in group.split(", ")]
        assert labels
        assert set(labels) <= found[name], query


@pytest.mark.parametrize("name", ["embed", "rerank"])
def test_triton_gets_a_repository_that_its_protobuf_reads(
    name: str, bundles: dict[str, Path], models: dict[str, txport.Model], tmp_path: Path
) -> None:
    """Its graph has the ports of the config, and computes what the bundle computes."""
    subprocess.run([sys.executable, FOLDER / "triton.py", bundles[name], tmp_path], check=True)
    session = ort.InferenceSession(tmp_path / name / "1" / "model.onnx")
    ids = models[name].encode("a b c")
    given: dict[str, Any] = {"input_ids": [ids], "source_lengths": [len(ids)], "token_type_ids": [[0] * len(ids)]}
    feeds = {
        each.name: np.array(given[each.name], np.int64 if "64" in each.type else np.int32)
        for each in session.get_inputs()
    }
    outputs = [each.name for each in session.get_outputs()]
    (wanted,) = models[name].infer(["a b c"])
    for output, value in zip(outputs, session.run(outputs, feeds), strict=True):
        np.testing.assert_allclose(np.squeeze(value[0]), np.squeeze(wanted[output]), rtol=1e-5, atol=1e-6)
    text_format = importlib.import_module("google.protobuf.text_format")
    proto = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason=REASON)
    config = text_format.Parse((tmp_path / name / "config.pbtxt").read_text("utf-8"), proto.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == (name, "onnxruntime", 32)
    for ports, given_ports in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [each.name for each in ports] == [each.name for each in given_ports]
        for port, graph in zip(ports, given_ports, strict=True):
            dims = list(port.reshape.shape) if port.HasField("reshape") else list(port.dims)
            assert dims == [dim if isinstance(dim, int) else -1 for dim in graph.shape[1:]]
            assert proto.DataType.Name(port.data_type) == TYPES[graph.type]


def test_triton_refuses_a_bundle_that_generates(bundles: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / "triton.py", bundles["spell"], tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"{bundles['spell']} generates text, and Triton has no search for it; serve it with txport serve\n"
    )
