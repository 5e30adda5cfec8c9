"""Trainings: from initial weights along the batches of a seed, stored at the requested steps."""
