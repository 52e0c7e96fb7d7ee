"""Bounds by cuts: what must leave or enter a set of ranks."""
