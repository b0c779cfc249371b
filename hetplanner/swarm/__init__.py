"""Elastic training that talks: gRPC, torch and the processes around the machines of `hetplanner.elastic`."""
