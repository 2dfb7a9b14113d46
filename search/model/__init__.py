"""The layouts of a graph as a problem of costs: what every decision costs, and what it holds in memory."""
