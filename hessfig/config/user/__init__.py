"""Code, folders and bundles of the user's own."""
