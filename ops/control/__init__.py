"""What gives a graph its shape: tuples, ordering, requests for gradients, dumps."""
