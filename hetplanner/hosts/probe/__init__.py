"""Measuring a cluster's hosts and the links between them, over ssh: `hetplanner cluster probe`.

`rounds` says who measures with whom, `measuring` has the hosts do it, `record` keeps what was found, and `result`
writes it into a cluster. `streams` and `devices` run on the hosts.
"""
