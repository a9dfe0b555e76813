"""The embedded reference engine: scheduler contract, policies, HTTP server process."""
