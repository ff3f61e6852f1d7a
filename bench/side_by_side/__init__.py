"""Kvasir and other programs side by side: the same prompts, in turns, by one clock."""
