"""What others would do: rank order, random placement, a pipeline in each site, OP-Fence, SWARM's assignment."""
