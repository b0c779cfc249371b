"""The global order of a step's actions, and who adds up which gradients."""
