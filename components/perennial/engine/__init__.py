"""The training engine: task protocol, worker, loop, sharding, checkpoints. Uses torch."""
