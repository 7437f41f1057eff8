"""Votes from files, tables and tools: one door, `read_annotations`, and its formats."""
