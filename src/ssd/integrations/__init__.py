"""SSD inside engines of others: they verify, our draft works ahead."""
