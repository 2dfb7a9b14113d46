"""Driver, pipeline and settings of a compile."""
