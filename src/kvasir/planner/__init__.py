"""What a deployment needs before it exists: bytes, sequences, devices, dollars, flags; for us and for others."""
