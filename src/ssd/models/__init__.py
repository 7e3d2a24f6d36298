"""Dense decoders of the Llama and Qwen shape, and where their weights come from."""
