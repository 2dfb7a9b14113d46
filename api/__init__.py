"""Scripts import this package. It is laid out as MindSpore is, and has the hook that launches a called cell.

Imports ir and ops only. Modules are imported one by one, so that a command that needs none of them
starts fast.
"""
