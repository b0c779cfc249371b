"""The Simulate page: `model` is its state, `view` what is seen."""
