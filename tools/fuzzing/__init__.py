"""Random programs for autobatch as a user would write them: drawn, run in many configurations, compared and shrunk."""
