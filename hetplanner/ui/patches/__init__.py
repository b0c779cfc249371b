"""What the page changes in Bokeh and Panel as published: scripts, and a switch for each in `patches`."""
