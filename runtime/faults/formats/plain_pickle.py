"""Pickles of plain containers, decoded without Python's `pickle`: dictionaries, lists, tuples, texts and numbers.

An opcode that could call or import something is an error, and so is a count that the file cannot hold.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_SHORT: dict[int, Any] = {ord("N"): None, 0x88: True, 0x89: False}
FRAMES = b"X\x06\x00\x00\x00framesq"


def last_entries(data: bytes, last: int) -> Any:
    """Return the content of a record's pickle without most entries before the last ones.

    Entries refer by number to texts and stacks of earlier ones, which are numbered in the order of their use: of the
    entries in the middle those are decoded that have something new.

    Raises:
        ValueError: see `plain_pickle`.
    """
    at = data.find(FRAMES) + len(FRAMES)
    begin = b"}(h" + data[at : at + 1]  # an entry: an empty dictionary, a mark, and its first key
    second, start = data.find(begin, at), len(data)
    for _ in range(last):
        start = data.rfind(begin, 0, start)
        if start <= second:
            return plain_pickle(data)
    decoder = PlainDecoder(data)
    try:
        decoder.run(0, second)
        at = second
        while (at := data.find(_put(len(decoder.memo)), at, start)) >= 0:
            entry, following = data.rfind(begin, 0, at), data.find(begin, at)
            decoder.run(entry, following)
            at = following
        return decoder.run(start)
    except ValueError:  # bytes in the middle that look like another opcode
        return plain_pickle(data)


def _put(number: int) -> bytes:
    """Return the opcode that gives the value on top of the stack a number."""
    return b"q" + bytes([number]) if number < 256 else b"r" + number.to_bytes(4, "little")


def plain_pickle(data: bytes) -> Any:
    """Return the dictionaries, lists, tuples, texts and numbers of a pickle.

    Raises:
        ValueError: it has an opcode for anything else, or is damaged.
    """
    return PlainDecoder(data).run(0)


class PlainDecoder:
    """A pickle's stack and the values that it refers to by number."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, at: int, end: int = 0) -> Any:
        """Decode from a position to another one, or to the end, whose value is returned.

        Raises:
            ValueError: see `plain_pickle`.
        """
        data, stack, marks, memo = self.data, self.stack, self.marks, self.memo
        until = end or len(data)
        try:
            while at < until:
                code = data[at]
                at += 1
                if code == 0x68:  # BINGET
                    stack.append(memo[data[at]])
                    at += 1
                elif code == 0x28:  # MARK
                    marks.append(len(stack))
                elif code in _SINCE_MARK:
                    begin = marks.pop()
                    items = stack[begin:]
                    del stack[begin:]
                    _SINCE_MARK[code](stack, items)
                elif code == 0x6A:  # LONG_BINGET
                    stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                    at += 4
                elif code in _NUMBERS:
                    size, read = _NUMBERS[code]
                    stack.append(read(data, at)[0])
                    at += size
                elif code in _PUTS:
                    memo[int.from_bytes(data[at : at + _PUTS[code]], "little")] = stack[-1]
                    at += _PUTS[code]
                elif code in _TEXTS:
                    width = _TEXTS[code]
                    size = int.from_bytes(data[at : at + width], "little")
                    at += width
                    if size > len(data) - at:
                        raise ValueError(f"a text of {size} bytes at byte {at} is longer than the file")
                    stack.append(data[at : at + size].decode())
                    at += size
                elif code in _SHORT:
                    stack.append(_SHORT[code])
                elif code == 0x8A:  # LONG1
                    size = data[at]
                    stack.append(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
                    at += 1 + size
                elif code in _SKIPPED:
                    at += _SKIPPED[code]
                elif code == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                elif code in _BUILDERS:
                    _BUILDERS[code](stack)
                elif code == 0x2E:  # STOP
                    return stack.pop()
                else:
                    raise ValueError(f"opcode {code:#04x} at byte {at - 1} is not one of plain data, and is not run")
        except (KeyError, IndexError, struct.error, TypeError, AttributeError) as error:
            damage = f"damaged before byte {at}: {type(error).__name__}"
            raise ValueError(damage if at < len(data) else f"cut off after {len(data)} bytes") from None
        if not end:
            raise ValueError(f"cut off after {until} bytes")
        return None


def _append(stack: list[Any]) -> None:
    item = stack.pop()
    stack[-1].append(item)


def _set(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    stack[-1][key] = value


def _tuple_of(size: int) -> Callable[[list[Any]], None]:
    def build(stack: list[Any]) -> None:
        items = tuple(stack[len(stack) - size :])
        if len(items) < size:
            raise IndexError
        del stack[len(stack) - size :]
        stack.append(items)

    return build


_SKIPPED = {0x80: 1, 0x95: 8}
"""Bytes after PROTO and FRAME."""
_PUTS = {0x71: 1, 0x72: 4}
"""Bytes of the numbers after BINPUT and LONG_BINPUT."""
_TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}
_NUMBERS: dict[int, tuple[int, Callable[[bytes, int], tuple[Any, ...]]]] = {
    code: (struct.calcsize(form), struct.Struct(form).unpack_from)
    for code, form in ((0x4B, "<B"), (0x4D, "<H"), (0x4A, "<i"), (0x47, ">d"))
}
_BUILDERS: dict[int, Callable[[list[Any]], None]] = {
    0x7D: lambda stack: stack.append({}), 0x5D: lambda stack: stack.append([]), 0x29: lambda stack: stack.append(()),
    0x61: _append, 0x73: _set,
    0x85: _tuple_of(1), 0x86: _tuple_of(2), 0x87: _tuple_of(3),
}  # fmt: skip
_SINCE_MARK: dict[int, Callable[[list[Any], list[Any]], None]] = {
    0x65: lambda stack, items: stack[-1].extend(items), 0x74: lambda stack, items: stack.append(tuple(items)),
    0x75: lambda stack, items: stack[-1].update(zip(items[::2], items[1::2], strict=True)),
}  # fmt: skip
