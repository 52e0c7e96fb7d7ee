"""The commands that read and write single files of executors."""
