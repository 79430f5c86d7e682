"""The bytes of L3: one shared memory file, handed to clients by descriptor."""
