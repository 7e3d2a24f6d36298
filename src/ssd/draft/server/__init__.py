"""The draft server: peers, sessions, tenants, and the scheduler that grows their trees."""
