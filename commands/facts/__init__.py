"""What files of a compile say of operators, layouts, collectives, memory and times is read here by kind of ranks."""
