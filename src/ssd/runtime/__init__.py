"""A batch in, logits out."""
