"""Data only: Problem, Plan, Estimate, Action, Span, Trace, and their files."""
