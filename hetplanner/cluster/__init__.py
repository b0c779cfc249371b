"""Devices, hosts, sites, links; their files, and the GPU catalog."""
