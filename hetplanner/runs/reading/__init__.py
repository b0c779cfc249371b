"""Reading a run while it grows: telemetry, events, logs, series. Begin with `reader`."""
