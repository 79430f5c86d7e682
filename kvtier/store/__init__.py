"""What one node's agent holds and may do next, as a pure state machine: no I/O, and every time is passed in."""
