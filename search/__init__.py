"""The search finds the layouts of a graph, and compares its plans with usual ones by rates that it measures."""
