"""Votes as data: columns, named data sets, simulated crowds."""
