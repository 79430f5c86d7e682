"""What the native package copies and reads, against libraries and against the machine's own limits, all in one run."""
