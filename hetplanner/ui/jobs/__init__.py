"""Work outside the server process: searches, computations, probes, compilation. Begin with `jobs`."""
