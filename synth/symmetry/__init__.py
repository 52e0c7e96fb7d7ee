"""Use the symmetries of networks: quotient problems and their check, relabellings, canonical orders."""
