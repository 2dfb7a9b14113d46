"""This package finds facts about a graph that passes and the runtime both need: updates of parameters, and costs."""
