"""A plugin of pytest (-p told): which tests there are, and what became of each as soon as it ends,
as lines of JSON into the pipe that $TOLD numbers. bench/lab_bars.py reads them."""

import json
import os

import pytest


class Teller:
    def __init__(self, pipe: int):
        self.pipe, self.listed = pipe, False

    def tell(self, **what) -> None:
        os.write(self.pipe, (json.dumps(what) + "\n").encode())

    def pytest_collection_finish(self, session):
        self._list([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self._list(ids)

    def _list(self, ids: list[str]) -> None:
        """Once: each process of xdist has the same ones."""
        if ids and not self.listed:
            self.listed = True
            self.tell(listed=list(ids))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr or "")
            self.tell(test=report.nodeid, outcome=report.outcome,
                      seconds=round(report.duration, 1), why=why[:400])  # fmt: skip


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # a process of xdist tells the first one, which tells us
        config.pluginmanager.register(Teller(int(os.environ["TOLD"])))
