"""What the files of a compile say: operators, layouts, collectives, memory and times, of each kind of ranks once."""
