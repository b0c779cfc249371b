"""The real machines on simulated hosts, network and disk, under scripted faults. Begin with `simulation`."""
