"""Types, layouts, graphs and mistakes, on which all other packages stand."""
