"""Messages on their way through MPI, driven on while their rank computes.

MPI hands a long message over in steps that both sides take, each whenever it calls MPI. Where ranks of a host cannot
read each other's memory, as in many containers, and between hosts, a receiver would wait for the sender's next call:
for as long as that one computes.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any

from mspc.runtime.comm.mpi_library import MPI

PAUSE = 0.0002
"""Seconds from one look at the messages to the next: a message is late by a few of them, and a rank that computes
meanwhile loses one or two hundredths of its time."""


class MessagesUnderWay:
    """The messages of a process that are sent and may not have arrived. A thread calls MPI for them, until all have."""

    def __init__(self) -> None:
        self._messages: list[tuple[Any, Any]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, request: Any, carried: Any) -> None:
        """A message that MPI has been given. carried: the memory it is read from, held until it has arrived."""
        if request.Test():
            return
        with self._changed:
            self._messages.append((request, carried))
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._drive, name="mspc-messages", daemon=True)
                self._thread.start()
                atexit.register(self.end)
            self._changed.notify()

    def end(self) -> None:
        """Call MPI no more: it is about to end, which sees to the messages that are left."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _drive(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._messages or self._ended)
                if self._ended:
                    return
                looked_at = list(self._messages)
            try:
                arrived = {id(message) for message in looked_at if message[0].Test()}
            except MPI.Exception:
                return  # a rank has died, which the next call of this one says
            with self._changed:
                self._messages = [message for message in self._messages if id(message) not in arrived]
            time.sleep(PAUSE)
