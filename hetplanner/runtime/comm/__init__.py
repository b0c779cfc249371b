"""All that ranks send each other: the process group, messages, emulated links, reductions. Begin with `transport`."""
