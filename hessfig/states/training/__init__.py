"""Trainings: from initial weights along the batches of a seed, kept on disk at the steps that are asked for."""
