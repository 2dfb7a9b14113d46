"""The search for the layouts of a graph, its plans beside the usual ones, and the rates that it reckons with."""
