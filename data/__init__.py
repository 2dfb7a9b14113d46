"""This package has what networks read: data sets and files of records. Nothing of the compiler and of the runtime knows
it."""
