"""What a rank measures and tells: profile, prediction, load of the host, telemetry."""
