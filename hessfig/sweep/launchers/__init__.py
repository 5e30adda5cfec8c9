"""Who measures the cells of a plan: workers of this machine, a share of them, or tasks of a Slurm job."""
