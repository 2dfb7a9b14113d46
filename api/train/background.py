"""Files are written while training continues: one at a time, in a thread that ends with its file."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mspc.ir.diagnostics import MspcError

__all__: tuple[str, ...] = ()


class Background:
    """Work beside the script. What failed is raised where the script waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: MspcError | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], object]) -> None:
        """Begin some work, once the work before has ended. Raises what that has raised."""
        self.wait()

        def run() -> None:
            try:
                work()
            except MspcError as error:
                self._error = error
            except Exception as error:  # whatever it is: the script must hear of it
                self._error = MspcError(f"a checkpoint could not be written: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the work under way. Raises MspcError where it has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
