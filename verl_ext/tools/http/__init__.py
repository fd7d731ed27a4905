"""JSON over HTTP: what this package's servers share (server.py), and what their clients share (client.py)."""
