"""Read votes from files, tables and tools: `read_annotations` and its formats."""
