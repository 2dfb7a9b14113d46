"""The front end: traces the Python source of `construct` into one graph without running it."""
