"""The demonstrations on which recipe/cold_start/train.py trains the tiny model of the tool-using agent."""
