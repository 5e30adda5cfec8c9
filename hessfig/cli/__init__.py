"""The command line: verbs, overrides, help, completion."""
