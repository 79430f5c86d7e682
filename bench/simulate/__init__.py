"""The simulator: production's policies, index and ledgers over the emulator's engine model, in virtual time."""
