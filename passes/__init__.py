"""A pass turns a graph into another one. Each has a file, and its helpers lie in the folder of their kind."""
