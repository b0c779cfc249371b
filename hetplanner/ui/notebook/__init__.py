"""The page in notebooks: live cells, the map in a cell, the dashboard in a frame, Jupyter's launcher."""
