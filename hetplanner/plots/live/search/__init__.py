"""Figures of a search and its plan: convergence, allocation, costs, replay."""
