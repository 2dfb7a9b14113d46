"""This package writes what a compile gives: dumps, the programs of all ranks, first values, and `.mindir` files."""
