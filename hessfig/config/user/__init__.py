"""Users' own code and folders."""
