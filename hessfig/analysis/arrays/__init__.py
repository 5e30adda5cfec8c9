"""Arrays stored beside a table: whole Hessians, eigenvalues and densities, each checked before it is believed."""
