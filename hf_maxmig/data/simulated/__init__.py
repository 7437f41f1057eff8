"""Simulated crowds: the experts of the paper, and what they say of items of known class."""
