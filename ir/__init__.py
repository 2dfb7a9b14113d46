"""Types, layouts, graphs and diagnostics. Every other package depends on this one."""
