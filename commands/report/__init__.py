"""This package makes the tables, the JSON and the progress that commands print."""
