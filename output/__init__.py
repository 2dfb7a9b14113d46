"""What a compile writes: dumps, the programs of all ranks with `program.json` and first values, `.mindir` files."""
