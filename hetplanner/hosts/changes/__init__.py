"""When hosts leave or return: who they are, the next plan, files that come back."""
