"""Files of weights: checkpoints, the saved model, going on under another plan."""
