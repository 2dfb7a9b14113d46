"""Reader of PyTorch's exported programs, as data: without PyTorch, and without running anything."""
