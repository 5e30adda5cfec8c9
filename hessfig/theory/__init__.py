"""Theory: every statement of the paper as code, checked by `hessfig verify` against automatic differentiation."""
