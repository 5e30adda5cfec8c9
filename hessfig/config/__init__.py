"""Configuration: schema, checks, and the only doors to Hydra besides the command line."""
