"""Facts about a graph that passes and the runtime both need: updates of parameters, costs."""
