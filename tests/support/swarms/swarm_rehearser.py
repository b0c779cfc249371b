"""A process that rehearses a small swarm for a long time, to be killed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.swarms.swarm_runs import small_spec, start_swarm

if __name__ == "__main__":
    with start_swarm(small_spec(steps=100_000, stages=2), Path(sys.argv[1]), peers=2) as rehearsal:
        rehearsal.wait(600)
