"""The kinds of networks: every module here holds a KIND."""
