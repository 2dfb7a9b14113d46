"""What scripts hold outside the compiled graph: tensors, parameters, context, seeds, the launch of a graph.

Imports ir and ops only. Modules are imported one by one, so that a command that needs none of them
starts fast.
"""
