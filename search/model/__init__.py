"""The model states a graph's layouts as a problem of costs: what every decision costs, and what it holds in memory."""
