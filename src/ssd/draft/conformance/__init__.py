"""The conformance kit: plays one side of docs/protocol.md, and checks the other by its rules."""
