"""The HTTP server: OpenAI's API in front of an engine process. Needs the extra `server`."""
