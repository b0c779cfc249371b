"""Training data: kinds of files, what a workload needs of them, and which samples a step takes; no torch."""
