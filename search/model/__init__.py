"""The search problem of a graph: the cost and memory of every decision."""
