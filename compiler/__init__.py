"""The compiler: front end, pipeline, driver."""
