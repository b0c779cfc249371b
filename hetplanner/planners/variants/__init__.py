"""Plans made from a plan without a search: what-if, another problem, another schedule, fewer hosts."""
