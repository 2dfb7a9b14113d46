"""Facts of a compile (operators, layouts, collectives, memory, times) are read from its files, by kind of ranks."""
