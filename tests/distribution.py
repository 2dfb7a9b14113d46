"""Messages of xdist's processes about every test: only those that somebody reads.

Tests are many and short here; six messages for each, with all names that it could be chosen by, took as long as a tenth
of the tests themselves. Messages that say nothing are left out: that a test begins and ends, and that it was set up and
torn down at once.
"""

import re
import signal
from functools import partial
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

NOTICED = 0.01
"""Seconds from which on it is told how long a test was set up or torn down."""
PART = re.compile(r"\[part-\d+-of-\d+]$")
"""The end of the names of tests that are parts of a long one, which share nothing with the rest of their file."""
WAITED = 10.0
"""Seconds that a process may take to end once nothing is heard of it."""


def send_less(config: pytest.Config) -> None:
    """Let a process of xdist send what is read."""
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":  # of a module that has no name there
            plugin.sendevent = partial(send, plugin.sendevent)


def send(really: Any, name: str, **message: Any) -> None:
    """Hand a message on to xdist, unless nobody reads it."""
    if name in ("logstart", "logfinish"):
        return
    data = message.get("data", {})
    if name == "testreport" and data["outcome"] == "passed":
        if data["when"] != "call" and data["duration"] < NOTICED and not data["sections"]:
            return
        data["keywords"] = {}
    really(name, **message)


def how_it_ended(node: Any) -> str:
    """How a process that ran tests has ended before its time: by which signal or with which status."""
    status = node.gateway._io.popen.wait(WAITED)
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


class Files(LoadFileScheduling):
    """xdist's distribution by files, which looks through all that a process ever got after every test, without what is
    done, and looks for each test among all. Parts of a long test go to whichever process has time, each by itself."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if PART.search(nodeid) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        file, tests = self.workqueue.popitem(last=False)
        given = self.assigned_work.get(node, {})
        left = {name: some for name, some in given.items() if not all(some.values())}
        self.assigned_work[node] = left | {file: tests}
        if not hasattr(node, "places"):
            node.places = {name: place for place, name in enumerate(self.registered_collections[node])}
        node.send_runtest_some([node.places[name] for name, done in tests.items() if not done])

    def remove_node(self, node: Any) -> str | None:
        """Take back what a process that crashed had to do; the test in which it crashed, None where all were done. That
        test has failed: xdist would have it crash one process after the other, and run nothing else meanwhile."""
        given = self.assigned_work.pop(node)
        crashed = next((name for tests in given.values() for name, done in tests.items() if not done), None)
        for file, tests in given.items():
            if crashed in tests:
                tests[crashed] = True
            if not all(tests.values()):
                self.workqueue[file] = tests
        for other in self.assigned_work if crashed else ():
            self._reschedule(other)
        return crashed
