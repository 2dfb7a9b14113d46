"""The solver's layouts for the model of a graph, within its memory or near it, are given to the operators."""
