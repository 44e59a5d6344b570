"""An OpenAI-compatible HTTP server around one session. Starlette, uvicorn and prometheus-client come with the extra
``serve``; ``packages.require_service_packages`` tells when they are missing."""
