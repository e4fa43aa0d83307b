"""The path of an HTTP request: connection, access, body, endpoint, reply."""
