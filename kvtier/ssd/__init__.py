"""The bytes of L4: append-only segment files on SSD that survive their writer."""
