"""The studies: scientific subjects that use the core, each in a folder of its own that can be taken out."""
