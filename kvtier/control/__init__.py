"""Between the gateway and the agents: what nodes hold is followed, what they should do is said."""
