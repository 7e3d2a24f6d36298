"""How a process of ours is started, watched, spoken to first, and ended; and where its sockets live."""
