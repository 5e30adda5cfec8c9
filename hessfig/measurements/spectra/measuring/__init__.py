"""How the quantities of spectra are measured: what needs tensors, apart from what plans read."""
