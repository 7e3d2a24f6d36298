"""Drafting: the protocol, the client that a target holds, the server that works ahead, and its trees."""
