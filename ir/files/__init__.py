"""Files and folders that mspc writes are made beside their place, and moved there when they are complete."""
