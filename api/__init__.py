"""What scripts import, laid out as MindSpore is, and the hook through which a called cell is launched.

Imports ir and ops only. Modules are imported one by one, so that a command that needs none of them
starts fast.
"""
