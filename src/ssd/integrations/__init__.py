"""SSD inside other engines: they verify, and our draft works ahead."""
