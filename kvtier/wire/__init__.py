"""How agents and their clients speak: length-prefixed frames of msgpack messages, and page bytes where they must travel."""
