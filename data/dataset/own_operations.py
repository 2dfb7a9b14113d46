"""Scripts derive operations of their own on rows from these classes."""

from __future__ import annotations

from typing import Any

__all__: tuple[str, ...] = ()


class PyTensorOperation:
    """An operation in Python on one value: scripts define `_execute_py(self, value)`, or `__call__` itself."""

    def __call__(self, *values: Any) -> Any:
        return self._execute_py(*values)

    def _execute_py(self, *values: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define _execute_py or __call__")
