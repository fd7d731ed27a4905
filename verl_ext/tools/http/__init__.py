"""JSON over HTTP between this package's own servers and clients.

server    what the servers share: bodies, errors, disconnected clients, start and end
guard     who may ask them, and in which form
client    what the clients share: connections, bounded retries, errors with a remedy
"""
