"""A pass turns a graph into another one. Each has a file of its own, and what several share lies in `lib`."""
