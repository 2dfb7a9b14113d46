"""What the solver finds for the model of a graph, within its memory, and what lies near it; given to the operators."""
