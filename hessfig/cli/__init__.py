"""The command line: flags, verbs, what they do, help, completion."""
