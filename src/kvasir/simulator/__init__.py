"""Recorded traffic through the real scheduler and block manager under a virtual clock: what would have happened."""
