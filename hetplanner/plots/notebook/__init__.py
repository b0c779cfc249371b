"""HoloViews plots for notebooks and saved pages, from the same columns as the live figures."""
