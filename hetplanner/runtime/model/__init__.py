"""A stage of the model: from ops to tensors. Begin with `build`."""
