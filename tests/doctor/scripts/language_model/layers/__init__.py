"""Layers."""

from .attention import Attention
