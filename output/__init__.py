"""Output files of a compile: dumps, per-rank programs, initial values and `.mindir` files."""
