"""Compute over the paged cache: one interface, the obvious reference, and the compiled CPU kernels."""
