"""All reducers by name."""

from hetplanner.plan.reducers.central_ps import CentralServer
from hetplanner.plan.reducers.hierarchical import Hierarchical
from hetplanner.plan.reducers.names import ReducerName
from hetplanner.plan.reducers.program import Reducer
from hetplanner.plan.reducers.ring import Ring
from hetplanner.plan.reducers.sharded_ps import ShardedServer

REDUCERS: dict[ReducerName, Reducer] = {r.name: r for r in (ShardedServer(), Ring(), Hierarchical(), CentralServer())}
