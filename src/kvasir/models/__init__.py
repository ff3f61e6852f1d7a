"""Model families: foreign configs and files in, one decoder and its weights out."""
