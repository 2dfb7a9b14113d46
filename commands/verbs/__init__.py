"""The command line of each command: its options, and the call of its implementation."""
