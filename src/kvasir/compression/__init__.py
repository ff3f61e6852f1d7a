"""What to keep of a cache: decides, never frees."""
