"""This package has what networks read: data sets and files of records. The compiler and the runtime do not know it."""
