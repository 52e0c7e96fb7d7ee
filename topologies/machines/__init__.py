"""The text forms of machines that come with the package."""
