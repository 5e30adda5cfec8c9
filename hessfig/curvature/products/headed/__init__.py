"""Products of networks whose outputs are features times an unembedding: nothing of the size of all outputs is held."""
