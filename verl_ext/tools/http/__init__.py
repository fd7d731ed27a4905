"""JSON over HTTP between this package's own servers and clients.

server    what the servers share: limits, disconnected clients, start and end
client    what the clients share: connections, bounded retries, errors with a remedy
"""
