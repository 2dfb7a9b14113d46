"""Files and folders that mspc writes: made beside their place and moved there when they are whole; tensors in files."""
