"""Types, layouts, graphs and errors, on which all other packages are built."""
