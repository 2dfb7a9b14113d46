"""Functions over operators that do more than a row of the index says; their rows point here, and say which of them are
methods of tensors.

They are read when a compiled function calls them, so they keep to the part of Python that mspc compiles.
"""
