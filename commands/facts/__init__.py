"""This package reads what the files of a compile say of operators, layouts, collectives, memory and times, once per
kind of ranks."""
