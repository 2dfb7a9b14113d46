"""One file per verb of `mspc`."""
