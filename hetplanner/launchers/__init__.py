"""How a plan becomes processes: every launcher prints its request, a script to paste, before it runs."""
