"""Small facts with provenance (published slopes), shipped as package data."""
