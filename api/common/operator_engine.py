"""Scripts ask this of the engine that runs MindSpore's operators one by one; here operators run as they are called."""

from __future__ import annotations

from mspc.api import call_handler
from mspc.api.checks import boolean
from mspc.api.setting_kind import place_of_caller, say_once


class PyNativeExecutor:
    """The part of MindSpore's engine that has a meaning for graphs, too."""

    def sync(self) -> None:
        """Wait for all steps under way; raises what they raise."""
        if call_handler.installed() is not None:
            call_handler.current().synchronize()

    def set_async_for_graph(self, flag: bool) -> None:
        """Check the value; a warning says that it changes nothing. Raises TypeError for anything but True or False."""
        if boolean("set_async_for_graph: flag", flag):
            why = "results are waited for when a script looks at them"
            say_once("set_async_for_graph", f"{place_of_caller()}set_async_for_graph(True) changes nothing here: {why}")
