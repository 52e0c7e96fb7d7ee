"""Machines, clusters and families of networks, and what sends on them share."""
