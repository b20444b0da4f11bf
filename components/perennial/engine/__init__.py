"""The training engine: task protocol, worker, loop, sharding, checkpoints. The door to torch."""
