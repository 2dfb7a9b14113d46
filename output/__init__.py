"""Output files of a compile: dumps, per-rank programs, initial values and exported graphs."""
