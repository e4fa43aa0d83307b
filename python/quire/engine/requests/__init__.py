"""From prompts and chats to requests of the engine, and from its events to results."""
