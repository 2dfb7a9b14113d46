"""The formats are plans that people edit, and MindSpore's strategy and group files, with checksums."""
