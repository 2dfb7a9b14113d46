"""Facts about a graph that both passes and the runtime need: aliasing, integer ranges and costs."""
