"""hetplanner: plan, rehearse and run the training of large models on unlike GPUs over slow networks."""
