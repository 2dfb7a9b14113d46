"""Functions of `mindspore.ops` that are more than one expression.

The row also says which of them are methods of tensors. They are read when a compiled function calls them, so they keep
to the part of Python that mspc compiles.
"""
