"""The draft service, the tree both sides hold, and the engine's end of the line."""
