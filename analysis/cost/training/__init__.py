"""Estimates of training runs from sizes alone: model families, memory by stage and the time of a step."""
