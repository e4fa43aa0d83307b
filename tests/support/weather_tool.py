"""The tool that the package's model was trained on, and a question for which it calls the tool."""

from __future__ import annotations

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ABOUT = {"name": "get_weather", "description": "Get the weather for a city."}
WEATHER = {"type": "function", "function": {**ABOUT, "parameters": PARAMETERS}}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
