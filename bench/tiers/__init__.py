"""How near the node agent comes to what the machine can do: local pages, pages of another node, SSD, and the index."""
