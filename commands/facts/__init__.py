"""Facts of a compile, read from its files: operators, layouts, collectives, memory and times per kind of ranks."""
