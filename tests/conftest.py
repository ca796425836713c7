"""What a process that only hands tests to others needs; `fixtures` is for those that run them.

PyTorch takes seconds to import, in which no worker of pytest-xdist could begin.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.instruction_sets import describe_processor

collect_ignore = ["hugging_face"]  # `make test` runs it in an environment of its own
FIXTURES = "tests.fixtures"
KERNELS = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("tx", None):  # no other process runs the tests
        config.pluginmanager.import_plugin(FIXTURES)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say what the processor is, also where pytest is quiet: kernels, and so figures, depend on it."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not hasattr(session.config, "workerinput"):
        reporter.write_line(f"processor: {describe_processor()}")
        if fixtures := session.config.pluginmanager.get_plugin(FIXTURES):
            reporter.write_line(fixtures.describe_kernels())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker ends."""
    node.config.stash[KERNELS] = getattr(node, "workeroutput", {}).get("kernels", "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if kernels := config.stash.get(KERNELS, ""):
        terminalreporter.write_line(kernels)
