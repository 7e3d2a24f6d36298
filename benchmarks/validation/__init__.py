"""How far `ssd plan` can be trusted: its predictions beside measurements, published and our own."""
