"""One decoder and its proposers: from scheduled rows to decided tokens."""
