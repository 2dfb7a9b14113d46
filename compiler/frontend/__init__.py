"""From a network written in Python to one graph: `construct` is read, never run."""
