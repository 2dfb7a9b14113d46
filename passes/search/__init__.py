"""The search for the layouts of a whole graph: what every operator may choose, what choices cost together, the best."""
