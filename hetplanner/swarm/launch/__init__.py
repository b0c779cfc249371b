"""A swarm's processes: on this machine (`rehearsal`), on each host (`host_part`), with links and faults as scripted."""
