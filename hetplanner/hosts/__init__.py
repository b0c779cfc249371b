"""Runs over several hosts by OpenSSH: what the head does (`head`), and what each host does (`node`).

`head` and `checks` run on the user's machine. `node`, `keeper`, `facts` and `sending` run on a host; they import
little, so that they answer at once. `framing` is how the two talk.
"""
