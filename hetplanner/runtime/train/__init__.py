"""Training steps: the executor of a rank's actions, the update, the reference. Begin with `executor`."""
