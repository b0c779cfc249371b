"""Inside a peer's process: tensors, state, averaging, checkpoints. Begin with `state_keeper`."""
