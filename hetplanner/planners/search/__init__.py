"""The evolutionary search, whatever its objective: populations, islands, history. Begin with `planner`.

An objective says what a candidate is and what it is worth: `hetplanner.planners.step_time` or
`hetplanner.planners.dtfm`.
"""
