"""How the quantities of a state are measured: what needs tensors, apart from what plans read."""
