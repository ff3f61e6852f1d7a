"""KV number formats: one file per format, the contract they share, and the store that holds their tensors."""
