"""This is the engine of data sets: stages hand blocks of rows on, and workers run ahead of what reads the rows."""
