"""These functions over operators are more than one expression. A row of the index points to each of them.

The row also says which of them are methods of tensors. They are read when a compiled function calls them, so they keep
to the part of Python that mspc compiles.
"""
