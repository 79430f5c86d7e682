"""The node agent: one process a host that owns its share of L3 and L4."""
