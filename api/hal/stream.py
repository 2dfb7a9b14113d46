"""Streams and events of a device have nothing to order here: work that a script starts outside of a network is done
when the call returns, and steps stay in their own order. They are always ready, and a warning says so once."""

from __future__ import annotations

import itertools
import time
from typing import Any

from mspc.api import call_handler, state
from mspc.api.errors import ApiRuntimeError, ApiTypeError
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe

_NUMBERS = itertools.count(2)
_KEY = "stream"


def _wait() -> None:
    """Wait for all steps under way on a GPU; raises what they raise."""
    found = call_handler.installed()
    if found is not None:
        found.synchronize()


class Stream:
    """A place in a line of work; all is done already. priority changes nothing."""

    def __init__(self, priority: int = 0, **kwargs: Any) -> None:
        unknown = next((name for name in kwargs if name not in ("stream", "stream_id", "device_id")), None)
        if unknown is not None:
            raise ApiTypeError(f"Stream: got an unexpected keyword argument {unknown!r}")
        self.id = kwargs.get("stream_id")
        if self.id is None:
            self.id = next(_NUMBERS)
            say_once(
                "streams",
                f"{place_of_caller()}streams and events change nothing here: what a call asks for is done when it "
                "returns, and steps run as their graph says",
            )

    @property
    def device_name(self) -> str:
        return state.current().general.get("device_target") or "CPU"

    @property
    def device_id(self) -> int:
        return state.current().general.get("device_id") or 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Stream(device_name={self.device_name}, device_id:{self.device_id}, stream id:{self.id})"

    def query(self) -> bool:
        """True: there is no work left."""
        return True

    def synchronize(self) -> None:
        """Wait for all steps under way; raises what they raise."""
        _wait()

    def record_event(self, event: Event | None = None) -> Event:
        """An event that has happened."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Nothing: the event has happened."""

    def wait_stream(self, stream: Stream) -> None:
        """Nothing: the stream has no work left."""


class Event:
    """A moment. enable_timing: whether `elapsed_time` will be called; blocking changes nothing."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing = enable_timing
        self.moment: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Now, in whatever stream. Waits for all steps under way where times are measured."""
        if self.enable_timing:
            _wait()
        self.moment = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing: the event has happened."""

    def synchronize(self) -> None:
        """Wait for all steps under way; raises what they raise."""
        _wait()

    def query(self) -> bool:
        """True: the event has happened."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another.

        Raises:
            RuntimeError: one of them has not been recorded, or was made without enable_timing.
        """
        if self.moment is None or end_event.moment is None or not (self.enable_timing and end_event.enable_timing):
            raise ApiRuntimeError("Event.elapsed_time: both events must have enable_timing=True, and be recorded")
        return (end_event.moment - self.moment) * 1000


def default_stream() -> Stream:
    """The stream of all work."""
    return Stream(stream_id=0)


def communication_stream() -> Stream:
    """The stream of collectives."""
    return Stream(stream_id=1)


def current_stream() -> Stream:
    """The stream that was set last."""
    return state.current().general.get(_KEY) or default_stream()


def set_cur_stream(stream: Stream) -> None:
    """Make a stream the one that `current_stream` gives.

    Raises:
        TypeError: it is no stream.
    """
    if not isinstance(stream, Stream):
        raise ApiTypeError(f"set_cur_stream(): stream must be a Stream, not {describe(stream)}")
    state.current().general[_KEY] = stream


class StreamCtx:
    """`with StreamCtx(stream):` makes it the current one; None changes nothing."""

    def __init__(self, ctx_stream: Stream | None) -> None:
        if ctx_stream is not None and not isinstance(ctx_stream, Stream):
            raise ApiTypeError(f"StreamCtx: ctx_stream must be a Stream or None, not {describe(ctx_stream)}")
        self.stream, self.before = ctx_stream, None

    def __enter__(self) -> None:
        self.before = current_stream()
        if self.stream is not None:
            set_cur_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            set_cur_stream(self.before)
