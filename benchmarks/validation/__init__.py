"""How far `ssd plan` can be trusted: its predictions beside measurements, published and one's own."""
