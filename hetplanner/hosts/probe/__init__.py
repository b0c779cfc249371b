"""Measuring a cluster's hosts and the links between them, over ssh: `hetplanner cluster probe`.

`rounds` says who measures with whom, `measuring` has the hosts do it, `record` keeps what was found, and `result`
writes it into a cluster. `kept` is all of it for the command and for the page, `pace` the time that is left. `streams`
and `devices` run on the hosts.
"""
