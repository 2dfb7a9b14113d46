"""This package writes the files of a compile: dumps, the programs of all ranks, first values, and `.mindir` files."""
