"""Tasks: data sets of token sequences and the losses that score them."""
