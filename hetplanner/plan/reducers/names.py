"""Names of the reducers, in the order in which a planner prefers them where they cost the same."""

from typing import Literal, get_args

ReducerName = Literal["sharded-ps", "ring", "hierarchical", "central-ps"]
REDUCER_NAMES: tuple[ReducerName, ...] = get_args(ReducerName)
