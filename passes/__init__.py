"""Graph to graph: one pass a file, with its helpers in the room of their kind."""
