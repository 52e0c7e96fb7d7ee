"""Measurements of machines and of collectives, and the tables that are made from them."""
