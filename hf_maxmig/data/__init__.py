"""Crowd labels as data: columns, named data sets, simulated crowds."""
