"""How the machines' messages travel: frames, certificates, and endpoints over gRPC. No torch."""
