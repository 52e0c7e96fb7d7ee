"""The text form of topologies (TOML): its reader, its writer, and the safe reading of files."""
