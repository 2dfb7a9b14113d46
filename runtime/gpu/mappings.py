"""Memory of other processes that this one has mapped, each allocation once, and as long as something holds its mapping.

What CUDA frees in one process stays where it is until the others have unmapped it: mappings of arrays that are gone
would add up from compile to compile.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable


class Mapping:
    """An allocation of another process. address: where it begins here."""

    def __init__(self, address: int) -> None:
        self.address = address


class Mappings:
    """The mappings of a device.

    Args:
        unmap: ends the mapping at an address. A mapping that nobody holds any more ends at the next `end_unheld`, when
        nothing on the GPU can still use it, not where Python lets go of it.
    """

    def __init__(self, unmap: Callable[[int], None]) -> None:
        self._unmap = unmap
        self._held: weakref.WeakValueDictionary[bytes, Mapping] = weakref.WeakValueDictionary()
        self._addresses: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def has_unheld(self) -> bool:
        """Whether there is a mapping that nobody holds."""
        return len(self._held) < len(self._addresses)

    def mapping(self, handle: bytes, map: Callable[[bytes], int]) -> Mapping:
        """The mapping of an allocation, made by `map` where there is none; it may be one that nobody held."""
        found = self._held.get(handle)
        if found is None:
            if handle not in self._addresses:
                self._addresses[handle] = map(handle)
            found = self._held[handle] = Mapping(self._addresses[handle])
        return found

    def end_unheld(self) -> None:
        """Unmap what nobody holds; nothing on the GPU may use it."""
        self._end([handle for handle in self._addresses if handle not in self._held])

    def end_all(self) -> None:
        """Unmap everything: the device is gone."""
        self._end(list(self._addresses))

    def _end(self, handles: list[bytes]) -> None:
        for handle in handles:
            with contextlib.suppress(Exception):  # the process that had the memory may have ended
                self._unmap(self._addresses.pop(handle))
