"""The KV cache without its numbers: bytes, blocks, tables, prefixes.  Never imports torch."""
