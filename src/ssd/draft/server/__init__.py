"""The draft server: peers, sessions, tenants, and the scheduler that grows trees between outcomes."""
