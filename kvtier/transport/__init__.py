"""Between agents: one connection to each peer, many calls under way on it, page bytes received in place."""
