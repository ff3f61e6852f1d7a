"""Generators of texts whose right answer is known: one family of questions a file."""
