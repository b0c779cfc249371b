"""Which peer should serve another stage: policies, and the view of the swarm that they get."""
