"""Products of large networks: double backward through graphs that are kept while they fit into memory."""
