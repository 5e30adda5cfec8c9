"""Composition: from key=value words, the shipped YAML files and a user's own to checked settings. The door to Hydra."""
