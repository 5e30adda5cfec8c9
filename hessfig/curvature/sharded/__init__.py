"""The Hessian of one network on many devices: its parameters, vectors and Krylov bases are sharded over ranks."""
