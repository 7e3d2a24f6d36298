"""The decoders: from scheduled rows to decided tokens."""
