"""The kernels that run a cuda bundle's graphs on a GPU, found without a GPU: see `exporters.cuda.audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_model
from txport.errors import BundleError, UnavailableError, brief
from txport.system.packages import needed

if TYPE_CHECKING:
    from txport.exporters.cuda.audit.graph import Audit


def audits(bundle: Bundle) -> dict[str, Audit]:
    """Return the audit of each graph by role; empty for targets other than cuda.

    Raises `UnavailableError` if the onnx package is missing, and `BundleError` for an invalid graph.
    """
    if not bundle.manifest.made_for.on_gpu:
        return {}
    with needed("txport[export]", "an audit of CUDA's kernels"):
        from txport.exporters.cuda.audit.graph import audit_port
    found = {}
    for role, graph in bundle.manifest.graphs.items():
        model = read_model(bundle.file(role), weights=False)
        try:
            found[role] = audit_port(model, graph)
        except Exception as error:  # a malicious graph can cause any error; those of onnx share no base
            raise BundleError(f"{graph.file} is no sound graph: {brief(error)}; export it again") from error
    return found


def audits_or_why(bundle: Bundle) -> tuple[dict[str, Audit], str]:
    """Like `audits`, but return no audits and the reason if the onnx package is missing."""
    try:
        return audits(bundle), ""
    except UnavailableError as error:
        return {}, str(error)


def sentence(audit: Audit) -> str:
    """Return a sentence with the numbers of nodes on the device and on the host, the copies and the faults."""
    nodes = f"on CUDA: {audit.on_device} nodes on the device, {audit.on_host} on the host"
    faults = "; ".join(audit.faults) or "no fault"
    return f"{nodes}, {audit.copies} tensors copied between them; {faults}"


def rows(audit: Audit) -> list[tuple[str, str, str, str]]:
    """Return the rows of a table: operator, types, number of nodes, whether CUDA has a kernel."""
    return [(name, types, str(count), "yes" if has else "NO") for name, types, count, has in audit.rows()]


COLUMNS = ("operator", "types", "nodes", "kernel on CUDA")
