"""File formats of plans, and MindSpore's strategy and group files with checksums."""
