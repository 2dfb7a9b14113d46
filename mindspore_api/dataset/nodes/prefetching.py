"""Threads that make blocks in advance: one reads a pipeline, and several share the blocks of one node."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.nodes.block import Block, nbytes
from mspc.mindspore_api.errors import caller_location

if TYPE_CHECKING:
    from concurrent.futures import Future

AHEAD_BYTES = 256 << 20
"""Maximum number of bytes of blocks that wait to be read; a single larger block is allowed."""
JOIN_SECONDS = 5.0
"""Timeout for joining the thread when a reader stops; a thread that waits for a hanging process is abandoned."""
_T = TypeVar("_T")
_R = TypeVar("_R")


class _Shelf:
    """Queue of blocks between the thread that makes them and the one that reads them."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.changed = threading.Condition()
        self.blocks: deque[tuple[Block, int]] = deque()
        self.nbytes = 0
        self.closed = False
        self.ended = False
        self.error: BaseException | None = None

    def put(self, block: Block) -> bool:
        """Wait for room and add a block. Return False if the reader has closed the queue."""
        size = nbytes(block)
        with self.changed:
            while not self.closed and self.blocks and (
                len(self.blocks) >= self.depth or self.nbytes + size > AHEAD_BYTES
            ):
                self.changed.wait()
            if not self.closed:
                self.blocks.append((block, size))
                self.nbytes += size
                self.changed.notify_all()
            return not self.closed

    def take(self) -> Block | None:
        """Return the next block, or None after the last. Raise the error of the other thread, if any."""
        with self.changed:
            while not self.blocks and not self.ended:
                self.changed.wait()
            if self.blocks:
                block, size = self.blocks.popleft()
                self.nbytes -= size
                self.changed.notify_all()
                return block
        if self.error is not None:
            if isinstance(self.error, MspcError) and self.error.location is None:
                self.error.location = caller_location()  # the other thread runs no line of the user's
            raise self.error
        return None

    def end(self, error: BaseException | None = None) -> None:
        with self.changed:
            self.error, self.ended = error, True
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def read_ahead(blocks: Iterator[Block], depth: int) -> Iterator[Block]:
    """Yield the same blocks, made by another thread that is at most `depth` blocks in advance. The thread ends if the
    reader stops."""
    shelf = _Shelf(depth)
    thread = threading.Thread(target=_fill, args=(shelf, blocks), name="mspc data", daemon=True)
    thread.start()
    try:
        while (block := shelf.take()) is not None:
            yield block
    finally:
        shelf.close()
        thread.join(JOIN_SECONDS)


def _fill(shelf: _Shelf, blocks: Iterator[Block]) -> None:
    try:
        for block in blocks:
            if not shelf.put(block):
                break
        else:
            shelf.end()
    except BaseException as error:  # raised in the thread that reads
        shelf.end(error)
    finally:
        close = getattr(blocks, "close", None)
        if close is not None:
            close()


def in_order(function: Callable[[_T], _R], items: Iterable[_T], workers: int) -> Iterator[_R]:
    """Yield the function's results in the order of the items; `workers` threads share the work."""
    if workers == 1:
        yield from map(function, items)
        return
    from concurrent.futures import ThreadPoolExecutor  # late: one worker needs none, and it brings `logging` along

    waiting: deque[Future[_R]] = deque()
    with ThreadPoolExecutor(workers, "mspc data") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > workers + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
