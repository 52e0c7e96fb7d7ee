"""What users meet: the command line, tables, reports, libraries of clusters and the Python face.

The application sees every other package; no other room imports it.
"""
