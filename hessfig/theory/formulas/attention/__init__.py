"""Closed forms for self-attention: softmax, linear, several heads, bounds."""
