"""Users' own code, folders and bundles."""
