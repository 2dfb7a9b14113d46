"""The subcommands of `mspc`, one file each, and what launches graphs for a script."""
