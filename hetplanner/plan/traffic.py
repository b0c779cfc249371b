"""What one rank exchanged with another about one thing: counted while a run goes on, added up by who reads it."""

from dataclasses import dataclass


@dataclass(slots=True)
class LinkTraffic:
    """Counters of one rank, one peer and one role.

    Attributes:
        sent, sent_bytes: messages handed to the network.
        taken, taken_bytes: received.
        wait_s: from asking for a message until it may be seen, summed over those taken.
        late, late_s: those that the emulator could only hand over after their time, and by how much in sum.
    """

    sent: int = 0
    sent_bytes: int = 0
    taken: int = 0
    taken_bytes: int = 0
    wait_s: float = 0.0
    late: int = 0
    late_s: float = 0.0
