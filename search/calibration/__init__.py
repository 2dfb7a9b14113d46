"""The rates of the machine that a search assumes are measured here, doubted, and written to files."""
