"""One measure, one file, one dataclass; ``lab/registry.py`` names them."""
