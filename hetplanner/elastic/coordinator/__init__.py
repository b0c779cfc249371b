"""The coordinator: membership, journal, leases, the step transaction. Begin with `coordinator`."""
