"""What a target and a draft send each other: messages, frames, rules and sockets. No torch, no models."""
