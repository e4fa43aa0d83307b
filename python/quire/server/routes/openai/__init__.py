"""The interface of OpenAI."""
