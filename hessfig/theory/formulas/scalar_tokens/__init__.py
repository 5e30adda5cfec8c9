"""The scalar-token model of the slides: its spectrum, and attention sinks."""
