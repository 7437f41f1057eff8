"""Named data sets, from their published files to columns."""
