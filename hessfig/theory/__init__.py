"""Theory: every statement of the paper as code, and the growth rates it predicts."""
