"""What is measured here: tune and calibrate."""
