"""MindSpore's public surface, with MindSpore's module layout, and the hook that compiles a called cell.

Imports ir and ops only. Modules are imported one by one, so that a command that needs none of them
starts fast.
"""

VERSION = "0.1.0"
"""The version of mspc. It is here because ranks compare it, in a layer below the package's own `__version__`."""
