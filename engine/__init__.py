"""From a call in a script to running ranks: capture, compile, launch and simulation."""
