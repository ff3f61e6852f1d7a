"""Between text and token ids: tokenizer, chat templates, incremental decoding, stop strings."""
