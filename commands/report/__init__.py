"""Tables, JSON and progress of the commands."""
