"""Tables, JSON and progress lines that commands print."""
