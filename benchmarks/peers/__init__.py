"""Other engines beside this one: see docs/peers.md."""
