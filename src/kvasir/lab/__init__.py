"""The quality lab: what a saving costs on your model, seen through the engine that serves it."""
