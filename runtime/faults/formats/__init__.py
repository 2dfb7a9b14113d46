"""File formats of the records of jobs that hang: one module each. Nothing in a file is executed."""
