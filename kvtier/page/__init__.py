"""What a page is: identity, key, checksum, and the answers that may be given about one."""
