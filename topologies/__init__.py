"""Machines, clusters and families of networks, and the links and limits that messages share on them."""
