"""Which values settings of single groups may have."""
