"""Messages of coordinator, peers and trainers, their identities and time limits. Begin with `messages`."""
