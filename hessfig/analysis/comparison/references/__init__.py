"""Values to compare with, read from files that others wrote: bounded, checked, never executed."""
