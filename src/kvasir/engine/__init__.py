"""The engine: memory to blocks, plans to tensors, logits to tokens; knows token ids, never text."""
