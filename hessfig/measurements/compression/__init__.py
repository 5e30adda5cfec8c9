"""What is lost when weights are removed or rounded, and what matrices say of it beforehand."""
