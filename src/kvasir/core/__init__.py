"""The nouns every room shares: requests, sequences, steps, events, errors.  Standard library only."""
