"""Smurfs."""
