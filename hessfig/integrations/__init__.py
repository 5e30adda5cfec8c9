"""Adapters of hessfig.Monitor to trainers and loggers; each imports its library when it is used."""
