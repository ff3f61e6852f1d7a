"""One module a program: each runs as a worker in that program's own environment and imports nothing else of ours."""
