"""Commands about plans: plan, compare, pareto, simulate, rehearse, calibrate."""
