"""Files of plans, traces, settings and checkpoints: versioned, validated, naming no code."""
