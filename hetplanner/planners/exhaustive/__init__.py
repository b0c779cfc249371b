"""Every placement of a small problem: the optimum that other planners are compared with. Begin with `planner`."""
