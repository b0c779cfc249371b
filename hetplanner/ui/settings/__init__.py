"""The side bar: which problem to plan for."""
