"""The way of one HTTP request: connection, access, body, endpoint, reply."""
