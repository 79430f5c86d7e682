"""How far a prefix reaches on real engines: from worker to worker and past the death of both, with the node agent behind."""
