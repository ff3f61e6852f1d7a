"""Recorded traffic: one form for every trace, and a reader for each format others write."""
