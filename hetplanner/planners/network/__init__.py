"""Structure of the network that searches begin with: communities, near devices, linear orders."""
