"""The machine under a search: its rates measured, doubted, and as files."""
