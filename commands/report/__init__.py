"""The tables, the JSON and the progress that commands print."""
